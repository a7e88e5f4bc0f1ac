//! A library's modules as a tree, and what a path in one of them names.
//!
//! Modules for tests, and those of the feature `test-equipment`, are left out: they are no part of
//! the interface.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use syn::{Attribute, Item, Meta, UseTree, Visibility};

/// A module: a file's, or one in braces.
pub(crate) struct Module {
    parent: usize,
    children: Vec<Child>,
    /// Its items other than modules.
    pub(crate) items: Vec<Item>,
}

/// A module in a module.
pub(crate) struct Child {
    pub(crate) name: String,
    pub(crate) module: usize,
    pub(crate) public: bool,
    pub(crate) attributes: Vec<Attribute>,
}

/// What a path names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Named {
    /// An item of a module, by its name.
    Item(usize, String),
    Module(usize),
    /// Something of another crate, or that a macro makes.
    Elsewhere,
}

/// One name that a `use` brings.
pub(crate) struct Import {
    /// `*` for all.
    pub(crate) name: String,
    pub(crate) path: Vec<String>,
}

/// All modules; the first is the root.
pub(crate) struct Tree {
    modules: Vec<Module>,
}

impl Tree {
    /// Reads a library, beginning with its `lib.rs`.
    pub(crate) fn read(file: &Path) -> Result<Self> {
        let mut tree = Self {
            modules: Vec::new(),
        };
        let dir = file.parent().context("no directory")?;
        tree.add_file(0, file, dir)?;
        Ok(tree)
    }

    pub(crate) fn modules(&self) -> impl Iterator<Item = (usize, &Module)> {
        self.modules.iter().enumerate()
    }

    pub(crate) fn module(&self, index: usize) -> &Module {
        &self.modules[index]
    }

    fn add_file(&mut self, parent: usize, file: &Path, dir: &Path) -> Result<usize> {
        let text =
            fs::read_to_string(file).with_context(|| format!("cannot read {}", file.display()))?;
        let parsed =
            syn::parse_file(&text).with_context(|| format!("cannot parse {}", file.display()))?;
        let beside = file.parent().context("no directory")?;
        self.add(parent, parsed.items, beside, dir)
    }

    /// Adds a module that stands in a file of the directory `beside`, and whose child modules'
    /// files are in `dir`.
    fn add(&mut self, parent: usize, items: Vec<Item>, beside: &Path, dir: &Path) -> Result<usize> {
        let index = self.modules.len();
        self.modules.push(Module {
            parent,
            children: Vec::new(),
            items: Vec::new(),
        });
        for item in items {
            if !is_shipped(attributes(&item)) {
                continue;
            }
            let Item::Mod(module) = item else {
                self.modules[index].items.push(item);
                continue;
            };
            let name = module.ident.to_string();
            let below = dir.join(&name);
            let child = match module.content {
                Some((_, items)) => self.add(index, items, &below, &below)?,
                None => match path_of(&module.attrs) {
                    Some(path) => {
                        let file = beside.join(path);
                        let below = file.parent().context("no directory")?.to_owned();
                        self.add_file(index, &file, &below)?
                    }
                    None => self.add_file(index, &file_of(dir, &name)?, &below)?,
                },
            };
            self.modules[index].children.push(Child {
                name,
                module: child,
                public: is_public(&module.vis),
                attributes: module.attrs,
            });
        }
        Ok(index)
    }

    /// What `path` names in a module.
    pub(crate) fn resolve(&self, module: usize, path: &[String]) -> Named {
        self.find(module, path, 0)
    }

    fn find(&self, module: usize, path: &[String], depth: usize) -> Named {
        let Some((first, rest)) = path.split_first() else {
            return Named::Module(module);
        };
        match first.as_str() {
            "crate" => return self.find(0, rest, depth),
            "self" => return self.find(module, rest, depth),
            "super" => return self.find(self.modules[module].parent, rest, depth),
            _ => {}
        }
        // A circle of imports names nothing.
        if depth > 32 {
            return Named::Elsewhere;
        }
        let here = &self.modules[module];
        if let Some(child) = here.children.iter().find(|child| child.name == *first) {
            return self.find(child.module, rest, depth);
        }
        if here.items.iter().any(|item| is_named(item, first)) {
            return match rest {
                [] => Named::Item(module, first.clone()),
                // A variant of an enum, or an item of a type: not an item of its own.
                _ => Named::Elsewhere,
            };
        }
        for import in here.items.iter().flat_map(imports) {
            if import.name == *first && import.path[..] != path[..1] {
                let whole = [&import.path[..], rest].concat();
                return self.find(module, &whole, depth + 1);
            }
        }
        Named::Elsewhere
    }

    pub(crate) fn children(&self, module: usize) -> &[Child] {
        &self.modules[module].children
    }
}

/// The file that `#[path = ".."]` names.
fn path_of(attributes: &[Attribute]) -> Option<String> {
    attributes
        .iter()
        .find_map(|attribute| match &attribute.meta {
            Meta::NameValue(pair) if pair.path.is_ident("path") => match &pair.value {
                syn::Expr::Lit(syn::ExprLit {
                    lit: syn::Lit::Str(path),
                    ..
                }) => Some(path.value()),
                _ => None,
            },
            _ => None,
        })
}

fn file_of(dir: &Path, name: &str) -> Result<PathBuf> {
    let candidates = [
        dir.join(format!("{name}.rs")),
        dir.join(name).join("mod.rs"),
    ];
    let Some(file) = candidates.iter().find(|file| file.is_file()) else {
        bail!("no file for module {name} in {}", dir.display());
    };
    Ok(file.clone())
}

/// The names that a `use` brings; none for other items.
pub(crate) fn imports(item: &Item) -> Vec<Import> {
    let mut imports = Vec::new();
    if let Item::Use(item) = item {
        flatten(&item.tree, &mut Vec::new(), &mut imports);
    }
    imports
}

fn flatten(tree: &UseTree, prefix: &mut Vec<String>, out: &mut Vec<Import>) {
    let with = |name: &str, prefix: &[String]| match name {
        "self" => prefix.to_vec(),
        name => [prefix, &[name.to_owned()]].concat(),
    };
    match tree {
        UseTree::Path(path) => {
            prefix.push(path.ident.to_string());
            flatten(&path.tree, prefix, out);
            prefix.pop();
        }
        UseTree::Name(name) => {
            let path = with(&name.ident.to_string(), prefix);
            let name = path.last().cloned().unwrap_or_default();
            out.push(Import { name, path });
        }
        UseTree::Rename(rename) => out.push(Import {
            name: rename.rename.to_string(),
            path: with(&rename.ident.to_string(), prefix),
        }),
        UseTree::Glob(_) => out.push(Import {
            name: "*".to_owned(),
            path: prefix.clone(),
        }),
        UseTree::Group(group) => {
            for tree in &group.items {
                flatten(tree, prefix, out);
            }
        }
    }
}

pub(crate) fn is_public(visibility: &Visibility) -> bool {
    matches!(visibility, Visibility::Public(_))
}

/// The name of an item that has one.
pub(crate) fn name_of(item: &Item) -> Option<String> {
    let ident = match item {
        Item::Const(item) => &item.ident,
        Item::Enum(item) => &item.ident,
        Item::Fn(item) => &item.sig.ident,
        Item::Static(item) => &item.ident,
        Item::Struct(item) => &item.ident,
        Item::Trait(item) => &item.ident,
        Item::Type(item) => &item.ident,
        Item::Union(item) => &item.ident,
        _ => return None,
    };
    Some(ident.to_string())
}

fn is_named(item: &Item, name: &str) -> bool {
    name_of(item).is_some_and(|own| own == name)
}

pub(crate) fn attributes(item: &Item) -> &[Attribute] {
    match item {
        Item::Const(item) => &item.attrs,
        Item::Enum(item) => &item.attrs,
        Item::Fn(item) => &item.attrs,
        Item::Impl(item) => &item.attrs,
        Item::Macro(item) => &item.attrs,
        Item::Mod(item) => &item.attrs,
        Item::Static(item) => &item.attrs,
        Item::Struct(item) => &item.attrs,
        Item::Trait(item) => &item.attrs,
        Item::Type(item) => &item.attrs,
        Item::Union(item) => &item.attrs,
        Item::Use(item) => &item.attrs,
        _ => &[],
    }
}

/// Whether an item is in the interface that users get.
pub(crate) fn is_shipped(attributes: &[Attribute]) -> bool {
    !attributes.iter().any(|attribute| {
        let Meta::List(list) = &attribute.meta else {
            return false;
        };
        let condition = list.tokens.to_string();
        let hidden = list.path.is_ident("doc") && condition == "hidden";
        let private =
            ["test", "doc"].contains(&condition.as_str()) || condition.contains("test-equipment");
        hidden || (list.path.is_ident("cfg") && private)
    })
}
