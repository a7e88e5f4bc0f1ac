//! [`Host`]: how this host's KVM translates the addresses of guests.
//!
//! It is a parameter of the whole module, chosen when that is loaded, so that one comparison has
//! guests with nested paging, or guests with shadow page tables.

use std::fs;
use std::path::Path;

use crate::environment::Paging;

/// What is known of this host's KVM.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Host {
    /// The module, its parameter, and whether that is on; `None` where there is neither of the two
    /// that are known.
    found: Option<(Module, bool)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Module {
    name: &'static str,
    parameter: &'static str,
}

const MODULES: [Module; 2] = [
    Module {
        name: "kvm_intel",
        parameter: "ept",
    },
    Module {
        name: "kvm_amd",
        parameter: "npt",
    },
];

impl Host {
    /// Asks the kernel.
    pub fn ask() -> Self {
        Self::below(Path::new("/sys/module"))
    }

    fn below(directory: &Path) -> Self {
        let found = MODULES.into_iter().find_map(|module| {
            let path = [module.name, "parameters", module.parameter];
            let text = fs::read_to_string(directory.join(path.join("/"))).ok()?;
            Some((module, matches!(text.trim(), "Y" | "1")))
        });
        Self { found }
    }

    /// Why guests do not have this kind of paging here, if they have not.
    pub fn absence(&self, paging: Paging) -> Option<String> {
        match (paging, self.found) {
            (Paging::Nested, Some((module, false))) => Some(format!(
                "guests have shadow page tables here ({} has {}=0): name kvm:shadow instead",
                module.name, module.parameter
            )),
            (Paging::Shadow, Some((module, true))) => Some(format!(
                "guests have nested paging here; while none runs, as root: modprobe -r {name} && \
                 modprobe {name} {}=0",
                module.parameter,
                name = module.name
            )),
            (Paging::Shadow, None) => Some(
                "shadow page tables take the module kvm_intel with ept=0, or kvm_amd with npt=0, \
                 and neither is loaded"
                    .into(),
            ),
            // Another kind of KVM may run guests, too: trying shows it.
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cure_names_the_module() {
        let directory = std::env::temp_dir().join(format!("paging-{}", std::process::id()));
        let host = |name: &str, parameter: &str, value: &str| {
            let parameters = directory.join(name).join("parameters");
            fs::create_dir_all(&parameters).expect("it can be made");
            fs::write(parameters.join(parameter), value).expect("it can be written");
            let host = Host::below(&directory);
            fs::remove_dir_all(&directory).expect("it can be removed");
            host
        };
        let intel = host("kvm_intel", "ept", "Y\n");
        assert_eq!(intel.absence(Paging::Nested), None);
        let cure = intel.absence(Paging::Shadow).expect("it is not here");
        assert!(cure.ends_with("modprobe -r kvm_intel && modprobe kvm_intel ept=0"));
        let amd = host("kvm_amd", "npt", "N\n");
        assert_eq!(amd.absence(Paging::Shadow), None);
        let cure = amd.absence(Paging::Nested).expect("it is not here");
        assert!(cure.contains("kvm_amd has npt=0"), "{cure}");
        let other = host("kvm_pvm", "x", "Y\n");
        assert_eq!(other.absence(Paging::Nested), None);
        let line = other.absence(Paging::Shadow).expect("it is not here");
        assert!(line.contains("neither is loaded"), "{line}");
    }
}
