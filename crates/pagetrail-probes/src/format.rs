//! How the kernel describes a tracepoint's record, in its file `format`: where fields are, and the
//! names of numbers. Pure.

use std::collections::HashMap;

use crate::code::Width;

/// A field of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Field {
    pub(crate) offset: i16,
    pub(crate) width: Width,
}

/// A tracepoint's number.
pub(crate) fn id(text: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix("ID: "))?;
    line.trim().parse().ok()
}

/// Where a field is: a line such as `field:unsigned int exit_reason; offset:8; size:4; signed:0;`.
pub(crate) fn field(text: &str, name: &str) -> Option<Field> {
    let line = text.lines().find(|line| {
        let declared = line.trim().strip_prefix("field:");
        let declared = declared.and_then(|rest| rest.split(';').next());
        declared.is_some_and(|declared| declared.split_whitespace().last() == Some(name))
    })?;
    let part = |key: &str| {
        let mut parts = line.split(';').map(str::trim);
        parts.find_map(|part| part.strip_prefix(key)?.parse::<i16>().ok())
    };
    let width = match part("size:")? {
        1 => Width::B1,
        2 => Width::B2,
        4 => Width::B4,
        8 => Width::B8,
        _ => return None,
    };
    Some(Field {
        offset: part("offset:")?,
        width,
    })
}

/// The names in each `__print_symbolic` of the record's text form, in their order.
pub(crate) fn symbols(text: &str) -> Vec<HashMap<u64, String>> {
    let groups = text.split("__print_symbolic(").skip(1);
    groups.map(names_of).collect()
}

/// Pairs `{ NUMBER, "NAME" }` up to the end of the group.
fn names_of(group: &str) -> HashMap<u64, String> {
    let mut names = HashMap::new();
    let mut rest = group;
    // A group ends where no other pair follows the last one.
    while let Some(open) = rest.find('{') {
        if rest[..open].contains(')') && !names.is_empty() {
            break;
        }
        let Some(close) = rest[open..].find('}') else {
            break;
        };
        let pair = &rest[open + 1..open + close];
        if let Some((number, name)) = pair.split_once(',')
            && let Some(number) = constant(number.trim())
        {
            let name = name.trim().trim_matches('"');
            names.insert(number, name.to_owned());
        }
        rest = &rest[open + close + 1..];
    }
    names
}

fn constant(text: &str) -> Option<u64> {
    match text.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16).ok(),
        None => text.parse().ok(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KVM_EXIT: &str = "name: kvm_exit\nID: 512\nformat:\n\
        \tfield:unsigned short common_type;\toffset:0;\tsize:2;\tsigned:0;\n\n\
        \tfield:unsigned int exit_reason;\toffset:8;\tsize:4;\tsigned:0;\n\
        \tfield:u32 isa;\toffset:24;\tsize:4;\tsigned:0;\n\n\
        print fmt: \"reason %s\", (REC->isa == 1) ? __print_symbolic(REC->exit_reason & 0xffff, \
        { 0, \"EXCEPTION_NMI\" }, { 48, \"EPT_VIOLATION\" }) : __print_symbolic(REC->exit_reason, \
        { 0x000, \"read_cr0\" }, { 0x400, \"npf\" }), (REC->isa == 1) ? \"\" : \"{ 1, x }\"\n";

    #[test]
    fn fields_and_names_of_an_exit() {
        assert_eq!(id(KVM_EXIT), Some(512));
        let expected = Field {
            offset: 24,
            width: Width::B4,
        };
        assert_eq!(field(KVM_EXIT, "isa"), Some(expected));
        assert_eq!(field(KVM_EXIT, "reason"), None);
        let symbols = symbols(KVM_EXIT);
        assert_eq!(symbols.len(), 2);
        assert_eq!(symbols[0][&48], "EPT_VIOLATION");
        assert_eq!(symbols[1][&0x400], "npf");
        assert_eq!(symbols[1].len(), 2);
    }
}
