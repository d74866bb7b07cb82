//! Ready pipelines.

/// A pipeline that comes with the library.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Preset {
    /// Its name.
    pub name: &'static str,
    /// Its file.
    pub toml: &'static str,
}

/// All presets.
pub const PRESETS: [Preset; 5] = [
    Preset { name: "fq-codel", toml: include_str!("../../presets/fq-codel.toml") },
    Preset { name: "l4s", toml: include_str!("../../presets/l4s.toml") },
    Preset { name: "slicing", toml: include_str!("../../presets/slicing.toml") },
    Preset { name: "strict", toml: include_str!("../../presets/strict.toml") },
    Preset { name: "weighted", toml: include_str!("../../presets/weighted.toml") },
];

impl super::PipelineSpec {
    /// A preset by its name.
    ///
    /// # Errors
    /// There is no preset of this name; the text says which there are.
    pub fn preset(name: &str) -> Result<Self, super::SpecError> {
        match PRESETS.iter().find(|preset| preset.name == name) {
            Some(preset) => Self::from_toml(preset.toml),
            None => {
                let names: Vec<&str> = PRESETS.iter().map(|p| p.name).collect();
                Err(super::SpecError::Unknown {
                    what: "preset",
                    id: format!("`{name}`; there are {}", names.join(", ")),
                })
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Pipeline, PipelineSpec};

    #[test]
    fn presets_are_pipelines_and_read_back_from_what_they_write() {
        for preset in PRESETS {
            let spec = PipelineSpec::preset(preset.name).unwrap();
            let pipeline: Pipeline<Vec<u8>> = Pipeline::new(&spec, 1).unwrap();
            assert_eq!(pipeline.spec(), spec, "{}", preset.name);
            assert_eq!(PipelineSpec::from_toml(&spec.to_toml().unwrap()).unwrap(), spec, "{}", preset.name);
        }
    }

    #[test]
    fn an_unknown_preset_names_those_there_are() {
        let text = PipelineSpec::preset("fq").unwrap_err().to_string();
        assert_eq!(text, "there is no preset `fq`; there are fq-codel, l4s, slicing, strict, weighted");
    }
}
