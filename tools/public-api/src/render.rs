//! Public items as lines: each with its full path, so that a line says what it is on its own.

use std::collections::{BTreeMap, BTreeSet};

use syn::spanned::Spanned;
use syn::{Attribute, Fields, ImplItem, Item, ItemImpl, Meta, Signature, TraitItem, Type};

use crate::source::{Named, Tree, attributes, imports, is_public, is_shipped, name_of};

/// The lines of a library, sorted by the items' paths.
pub(crate) fn lines(tree: &Tree, library: &str) -> Vec<String> {
    let mut list = List {
        tree,
        paths: BTreeMap::new(),
        lines: BTreeSet::new(),
    };
    list.visit(0, library, "");
    for (index, module) in tree.modules() {
        for item in &module.items {
            if let Item::Impl(item) = item {
                list.implementation(index, item);
            }
        }
    }
    list.lines.into_iter().map(|(_, line)| line).collect()
}

/// The condition under which an item exists, and its public path.
type Place = (String, String);

struct List<'a> {
    tree: &'a Tree,
    /// The places of each public type or trait.
    paths: BTreeMap<(usize, String), Vec<Place>>,
    /// By path, so that a type and what belongs to it stand together.
    lines: BTreeSet<(String, String)>,
}

impl List<'_> {
    fn add(&mut self, path: &str, line: String) {
        self.lines.insert((path.to_owned(), line));
    }

    /// Adds the public items of a module whose public path is `path`.
    fn visit(&mut self, module: usize, path: &str, condition: &str) {
        let tree = self.tree;
        for child in tree.children(module).iter().filter(|child| child.public) {
            let condition = format!("{condition}{}", conditions(&child.attributes));
            let path = format!("{path}::{}", child.name);
            self.add(&path, format!("{condition}pub mod {path}"));
            self.visit(child.module, &path, &condition);
        }
        for item in &tree.module(module).items {
            let condition = format!("{condition}{}", conditions(attributes(item)));
            match item {
                Item::Use(import) if is_public(&import.vis) => {
                    for import in imports(item) {
                        self.import(module, &import.name, &import.path, path, &condition);
                    }
                }
                _ => self.item(module, item, None, path, &condition),
            }
        }
    }

    fn import(&mut self, module: usize, name: &str, from: &[String], path: &str, condition: &str) {
        match self.tree.resolve(module, from) {
            Named::Module(target) if name == "*" => self.visit(target, path, condition),
            Named::Module(target) => {
                let path = format!("{path}::{name}");
                self.add(&path, format!("{condition}pub mod {path}"));
                self.visit(target, &path, condition);
            }
            Named::Item(home, own) => {
                let items = &self.tree.module(home).items;
                for item in items
                    .iter()
                    .filter(|item| name_of(item).as_ref() == Some(&own))
                {
                    let condition = format!("{condition}{}", conditions(attributes(item)));
                    self.item(home, item, Some(name), path, &condition);
                }
            }
            Named::Elsewhere => {
                let path = format!("{path}::{name}");
                let line = format!("{condition}pub use {} as {path}", from.join("::"));
                self.add(&path, line);
            }
        }
    }

    /// Adds an item of `module`, if it is public, as `renamed` or its own name below `path`.
    fn item(
        &mut self,
        module: usize,
        item: &Item,
        renamed: Option<&str>,
        path: &str,
        condition: &str,
    ) {
        let Some(own) = name_of(item).filter(|_| is_public_item(item)) else {
            return;
        };
        let path = format!("{path}::{}", renamed.unwrap_or(&own));
        let place = (condition.to_owned(), path.clone());
        self.paths.entry((module, own)).or_default().push(place);
        let start = format!("{condition}{}", exhaustive(attributes(item)));
        match item {
            Item::Const(item) => {
                self.add(
                    &path,
                    format!("{start}pub const {path}: {}", text(&item.ty)),
                );
            }
            Item::Static(item) => {
                self.add(
                    &path,
                    format!("{start}pub static {path}: {}", text(&item.ty)),
                );
            }
            Item::Type(item) => {
                let line = format!(
                    "{start}pub type {path}{} = {}",
                    text(&item.generics),
                    text(&item.ty)
                );
                self.add(&path, line);
            }
            Item::Fn(item) => {
                self.add(&path, format!("{start}pub {}", signature(&item.sig, &path)))
            }
            Item::Struct(item) => {
                let line = format!("{start}pub struct {path}{}", text(&item.generics));
                self.add(&path, line + fields_kind(&item.fields));
                self.fields(&path, &item.fields);
            }
            Item::Enum(item) => {
                self.add(
                    &path,
                    format!("{start}pub enum {path}{}", text(&item.generics)),
                );
                for variant in &item.variants {
                    let start = conditions(&variant.attrs) + exhaustive(&variant.attrs);
                    let path = format!("{path}::{}", variant.ident);
                    let value = variant.discriminant.as_ref();
                    let value = value.map(|(_, value)| format!(" = {}", text(value)));
                    let line = format!("{start}variant {path}{}", variant_fields(&variant.fields));
                    self.add(&path, line + &value.unwrap_or_default());
                }
            }
            Item::Trait(item) => {
                let bounds = match item.supertraits.is_empty() {
                    true => String::new(),
                    false => format!(": {}", text(&item.supertraits)),
                };
                let line = format!("{start}pub trait {path}{}{bounds}", text(&item.generics));
                self.add(&path, line);
                for item in &item.items {
                    self.trait_item(&path, item);
                }
            }
            _ => self.add(&path, format!("{start}pub item {path}")),
        }
        for name in derived(attributes(item)) {
            self.add(&path, format!("{condition}impl {name} for {path}"));
        }
    }

    fn fields(&mut self, path: &str, fields: &Fields) {
        for (i, field) in fields.iter().enumerate() {
            if is_public(&field.vis) {
                let name = field
                    .ident
                    .as_ref()
                    .map_or(i.to_string(), ToString::to_string);
                let path = format!("{path}::{name}");
                self.add(&path, format!("pub field {path}: {}", text(&field.ty)));
            }
        }
    }

    fn trait_item(&mut self, path: &str, item: &TraitItem) {
        let (name, line) = match item {
            TraitItem::Fn(item) => {
                let path = format!("{path}::{}", item.sig.ident);
                let provided = item.default.is_some();
                let start = if provided { "provided " } else { "required " };
                let line = format!("{start}{}", signature(&item.sig, &path));
                (path, line)
            }
            TraitItem::Const(item) => {
                let path = format!("{path}::{}", item.ident);
                let line = format!("const {path}: {}", text(&item.ty));
                (path, line)
            }
            TraitItem::Type(item) => {
                let path = format!("{path}::{}", item.ident);
                let line = format!("type {path}: {}", text(&item.bounds));
                (path, line)
            }
            _ => return,
        };
        self.add(&name, line);
    }

    /// Adds what an `impl` gives a public type.
    fn implementation(&mut self, module: usize, item: &ItemImpl) {
        let Some(target) = target(&item.self_ty) else {
            return;
        };
        let Named::Item(home, name) = self.tree.resolve(module, &target) else {
            return;
        };
        let places = self.paths.get(&(home, name)).cloned().unwrap_or_default();
        for (condition, path) in places {
            let condition = format!("{condition}{}", conditions(&item.attrs));
            if let Some((of, _)) = &item.trait_ {
                let Some(last) = of.segments.last() else {
                    continue;
                };
                let start = format!("{condition}impl{}", text(&item.generics));
                let own = text(&item.self_ty);
                let own = own.rsplit("::").next().unwrap_or(&own);
                let line = format!("{start} {} for {path} as {own}", text(last));
                let plain = format!(" as {}", path.rsplit("::").next().unwrap_or(&path));
                self.add(&path, line.strip_suffix(&plain).unwrap_or(&line).to_owned());
                continue;
            }
            for item in &item.items {
                self.associated(&path, &condition, item);
            }
        }
    }

    fn associated(&mut self, path: &str, condition: &str, item: &ImplItem) {
        match item {
            ImplItem::Fn(item) if is_public(&item.vis) && is_shipped(&item.attrs) => {
                let condition = format!("{condition}{}", conditions(&item.attrs));
                let path = format!("{path}::{}", item.sig.ident);
                let line = format!("{condition}pub {}", signature(&item.sig, &path));
                self.add(&path, line);
            }
            ImplItem::Const(item) if is_public(&item.vis) && is_shipped(&item.attrs) => {
                let condition = format!("{condition}{}", conditions(&item.attrs));
                let path = format!("{path}::{}", item.ident);
                let line = format!("{condition}pub const {path}: {}", text(&item.ty));
                self.add(&path, line);
            }
            _ => {}
        }
    }
}

/// The path of the type that an `impl` is for.
fn target(own: &Type) -> Option<Vec<String>> {
    match own {
        Type::Path(path) => {
            let segments = path.path.segments.iter();
            Some(segments.map(|segment| segment.ident.to_string()).collect())
        }
        Type::Reference(reference) => target(&reference.elem),
        _ => None,
    }
}

fn is_public_item(item: &Item) -> bool {
    let visibility = match item {
        Item::Const(item) => &item.vis,
        Item::Enum(item) => &item.vis,
        Item::Fn(item) => &item.vis,
        Item::Static(item) => &item.vis,
        Item::Struct(item) => &item.vis,
        Item::Trait(item) => &item.vis,
        Item::Type(item) => &item.vis,
        Item::Union(item) => &item.vis,
        _ => return false,
    };
    is_public(visibility)
}

/// Whether users can build a struct by its fields, which adding one would break.
fn fields_kind(fields: &Fields) -> &'static str {
    match fields {
        Fields::Unit => "",
        fields if fields.iter().all(|field| is_public(&field.vis)) => " { all public }",
        _ => " { private .. }",
    }
}

fn variant_fields(fields: &Fields) -> String {
    let each = |field: &syn::Field| match &field.ident {
        Some(name) => format!("{name}: {}", text(&field.ty)),
        None => text(&field.ty),
    };
    let list: Vec<String> = fields.iter().map(each).collect();
    match fields {
        Fields::Unit => String::new(),
        Fields::Named(_) => format!(" {{ {} }}", list.join(", ")),
        Fields::Unnamed(_) => format!("({})", list.join(", ")),
    }
}

fn signature(signature: &Signature, path: &str) -> String {
    let text = text(signature);
    let name = format!("fn {}", signature.ident);
    text.replacen(&name, &format!("fn {path}"), 1)
}

/// The `#[cfg(..)]` of an item.
fn conditions(attributes: &[Attribute]) -> String {
    let of = attributes.iter().filter(|a| a.path().is_ident("cfg"));
    of.map(|attribute| text(attribute) + " ").collect()
}

fn exhaustive(attributes: &[Attribute]) -> &'static str {
    let found = |a: &Attribute| a.path().is_ident("non_exhaustive");
    if attributes.iter().any(found) {
        "#[non_exhaustive] "
    } else {
        ""
    }
}

fn derived(attributes: &[Attribute]) -> Vec<String> {
    let mut names = Vec::new();
    for attribute in attributes.iter().filter(|a| a.path().is_ident("derive")) {
        let Meta::List(list) = &attribute.meta else {
            continue;
        };
        let text = list.tokens.to_string();
        for name in text.split(',') {
            let name = name.rsplit("::").next().unwrap_or(name).trim();
            if !name.is_empty() {
                names.push(name.to_owned());
            }
        }
    }
    names
}

/// The source of a part, on one line.
fn text(part: &impl Spanned) -> String {
    let source = part.span().source_text().unwrap_or_default();
    let line = source.split_whitespace().collect::<Vec<_>>().join(" ");
    // What rustfmt adds when it breaks a line.
    line.replace("( ", "(")
        .replace(", )", ")")
        .replace("< ", "<")
        .replace(", >", ">")
}
