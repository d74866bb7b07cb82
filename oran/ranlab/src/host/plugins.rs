//! Stages from shared objects, as the configuration allows them.

use std::sync::Arc;

use insane_traffic_plugin::Registry;

use super::HostError;
use crate::config::Config;

/// Loads the objects that the configuration names. Their stages, and those of objects that are loaded later, are for
/// [`Cell::with_plugins`](crate::core::cell::Cell::with_plugins).
///
/// # Errors
/// Which object cannot be loaded, and why.
pub fn load(config: &Config) -> Result<Arc<Registry>, HostError> {
    let registry = Registry::new(config.plugins.directories.clone());
    for object in &config.plugins.objects {
        registry.load(object).map_err(|e| HostError::new(format!("plugins.objects: {}", object.display()), e))?;
    }
    Ok(Arc::new(registry))
}
