//! Parameters and statistics of stages: named values, nested, with the names and units of the pipeline file.
//!
//! A stage that the pipeline learns, and one from a shared object, needs no change here. What arrives is read by the
//! pipeline's own types, which refuse names and values that they do not know.

use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Number;

/// How deep values may be nested. Pipelines need 7.
pub const MAX_DEPTH: usize = 16;

/// Why a value cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct ValueError(String);

/// A value.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Value {
    /// What it is; absent for nothing at all.
    #[prost(oneof = "Kind", tags = "1, 2, 3, 4, 5, 6, 7")]
    pub kind: Option<Kind>,
}

/// What a [`Value`] is.
#[derive(Clone, PartialEq, prost::Oneof)]
pub enum Kind {
    /// A number that is not negative.
    #[prost(uint64, tag = "1")]
    Count(u64),
    /// A negative number.
    #[prost(sint64, tag = "2")]
    Signed(i64),
    /// A number that is no whole one; finite.
    #[prost(double, tag = "3")]
    Real(f64),
    /// A text.
    #[prost(string, tag = "4")]
    Text(String),
    /// A truth.
    #[prost(bool, tag = "5")]
    Flag(bool),
    /// Several values.
    #[prost(message, tag = "6")]
    List(List),
    /// Several values with names.
    #[prost(message, tag = "7")]
    Map(Map),
}

/// Several values.
#[derive(Clone, PartialEq, prost::Message)]
pub struct List {
    /// The values.
    #[prost(message, repeated, tag = "1")]
    pub items: Vec<Value>,
}

/// Several values with names.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Map {
    /// The values; no name is there twice.
    #[prost(message, repeated, tag = "1")]
    pub fields: Vec<Field>,
}

/// A value with its name.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Field {
    /// The name.
    #[prost(string, tag = "1")]
    pub name: String,
    /// The value.
    #[prost(message, optional, tag = "2")]
    pub value: Option<Value>,
}

impl Value {
    /// The value of anything that serde can write.
    ///
    /// # Errors
    /// A number that is not finite, or beyond 64 bits.
    pub fn of<T: Serialize>(thing: &T) -> Result<Self, ValueError> {
        let json = serde_json::to_value(thing).map_err(|e| ValueError(e.to_string()))?;
        Self::from_json(json)
    }

    /// Reads it as a `T`.
    ///
    /// # Errors
    /// What in it is no `T`: a name that does not exist, a value of the wrong kind or out of range.
    pub fn read<T: DeserializeOwned>(self) -> Result<T, ValueError> {
        let json = self.into_json()?;
        serde_json::from_value(json).map_err(|e| ValueError(e.to_string()))
    }

    /// The value that a JSON text would have.
    ///
    /// # Errors
    /// A number beyond 64 bits.
    pub fn from_json(json: serde_json::Value) -> Result<Self, ValueError> {
        use serde_json::Value as Json;
        let kind = match json {
            Json::Null => return Ok(Self { kind: None }),
            Json::Bool(flag) => Kind::Flag(flag),
            Json::String(text) => Kind::Text(text),
            Json::Number(number) => match (number.as_u64(), number.as_i64(), number.as_f64()) {
                (Some(count), _, _) => Kind::Count(count),
                (_, Some(signed), _) => Kind::Signed(signed),
                (_, _, Some(real)) => Kind::Real(real),
                _ => return Err(ValueError(format!("{number} has more than 64 bits"))),
            },
            Json::Array(items) => {
                let items = items.into_iter().map(Self::from_json).collect::<Result<_, _>>()?;
                Kind::List(List { items })
            }
            Json::Object(fields) => {
                let field = |(name, value)| Ok(Field { name, value: Some(Self::from_json(value)?) });
                Kind::Map(Map { fields: fields.into_iter().map(field).collect::<Result<_, _>>()? })
            }
        };
        Ok(Self { kind: Some(kind) })
    }

    /// The value as JSON.
    ///
    /// # Errors
    /// It is nested too deeply, a name is there twice, or a number is not finite.
    pub fn into_json(self) -> Result<serde_json::Value, ValueError> {
        self.json(MAX_DEPTH)
    }

    fn json(self, depth: usize) -> Result<serde_json::Value, ValueError> {
        use serde_json::Value as Json;
        let Some(deeper) = depth.checked_sub(1) else {
            return Err(ValueError(format!("values are nested more than {MAX_DEPTH} deep")));
        };
        Ok(match self.kind {
            None => Json::Null,
            Some(Kind::Count(count)) => Json::from(count),
            Some(Kind::Signed(signed)) => Json::from(signed),
            Some(Kind::Real(real)) => {
                Json::Number(Number::from_f64(real).ok_or_else(|| ValueError("a number is not finite".into()))?)
            }
            Some(Kind::Text(text)) => Json::String(text),
            Some(Kind::Flag(flag)) => Json::Bool(flag),
            Some(Kind::List(list)) => {
                Json::Array(list.items.into_iter().map(|item| item.json(deeper)).collect::<Result<_, _>>()?)
            }
            Some(Kind::Map(map)) => {
                let mut fields = serde_json::Map::new();
                for Field { name, value } in map.fields {
                    let value = value.unwrap_or_default().json(deeper)?;
                    if fields.contains_key(&name) {
                        return Err(ValueError(format!("`{}` is there twice", name.escape_default())));
                    }
                    fields.insert(name, value);
                }
                Json::Object(fields)
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn values_come_back_as_they_were() {
        let json = json!({"a": [1, -2, 2.5, u64::MAX, i64::MIN], "b": {"c": "text", "d": true, "e": null}});
        assert_eq!(Value::from_json(json.clone()).unwrap().into_json().unwrap(), json);
    }

    #[test]
    fn names_that_are_there_twice_depth_and_numbers_that_are_none_are_refused() {
        let field = || Field { name: "a\n".into(), value: None };
        let twice = Value { kind: Some(Kind::Map(Map { fields: vec![field(), field()] })) };
        assert_eq!(twice.into_json().unwrap_err().to_string(), "`a\\n` is there twice");
        let real = Value { kind: Some(Kind::Real(f64::NAN)) };
        assert!(real.into_json().unwrap_err().to_string().contains("finite"));
        let nest = |depth| {
            let inner = |inner, _| Value { kind: Some(Kind::List(List { items: vec![inner] })) };
            (1..depth).fold(Value::default(), inner)
        };
        assert!(nest(MAX_DEPTH).into_json().is_ok());
        assert!(nest(MAX_DEPTH + 1).into_json().unwrap_err().to_string().contains("16 deep"));
    }
}
