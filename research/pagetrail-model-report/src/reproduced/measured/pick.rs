//! Looks a [`Pick`] up in a document: names of fields, and `[key=value;..]` for an element.

use pagetrail_model::reproduce::recording::Pick;
use serde_json::Value;

/// The figure; `None` where the document does not have it, or it is no finite number.
pub(super) fn figure(document: &Value, pick: &Pick) -> Option<f64> {
    let number = |path: &str| find(document, path)?.as_f64();
    let over = match &pick.over {
        Some(path) => number(path)?,
        None => 1.0,
    };
    let value = number(&pick.path)? / over * pick.scale + pick.offset;
    value.is_finite().then_some(value)
}

/// What is at a path. `[]` is the first element of a list.
pub(super) fn find<'a>(document: &'a Value, path: &str) -> Option<&'a Value> {
    let mut at = document;
    let mut rest = path;
    while !rest.is_empty() {
        if let Some(filter) = rest.strip_prefix('[') {
            let (conditions, after) = filter.split_once(']')?;
            at = element(at, conditions)?;
            rest = after.strip_prefix('.').unwrap_or(after);
            continue;
        }
        let end = rest.find(['.', '[']).unwrap_or(rest.len());
        at = at.get(&rest[..end])?;
        rest = &rest[end..];
        rest = rest.strip_prefix('.').unwrap_or(rest);
    }
    Some(at)
}

/// The first element that meets all conditions; lists in lists count as one.
fn element<'a>(list: &'a Value, conditions: &str) -> Option<&'a Value> {
    list.as_array()?.iter().find_map(|element| match element {
        Value::Array(_) => self::element(element, conditions),
        _ => meets(element, conditions).then_some(element),
    })
}

fn meets(element: &Value, conditions: &str) -> bool {
    let mut conditions = conditions.split(';').filter(|text| !text.is_empty());
    conditions.all(|condition| {
        let Some((key, wanted)) = condition.split_once('=') else {
            return false;
        };
        match element.get(key) {
            Some(Value::String(text)) => text == wanted,
            Some(Value::Null) | None => false,
            Some(other) => serde_json::to_string(other).is_ok_and(|text| text == wanted),
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn paths_lead_to_elements_by_their_values() {
        let document = json!({
            "runs": [
                [{"name": "a, b (c)", "parts": 2, "ms": 5.0, "queue": false}],
                [{"name": "a, b (c)", "parts": "4", "ms": 10.0, "queue": true, "at": {"x.y": 1}}],
            ],
        });
        let at = |path: &str| find(&document, path).and_then(Value::as_f64);
        assert_eq!(at("runs[].ms"), Some(5.0));
        assert_eq!(at("runs[parts=2].ms"), Some(5.0));
        assert_eq!(at("runs[name=a, b (c);parts=4].ms"), Some(10.0));
        assert_eq!(at("runs[queue=true].ms"), Some(10.0));
        for nowhere in [
            "run",
            "runs.ms",
            "runs[parts=3].ms",
            "runs[parts].ms",
            "runs[parts=2",
            "runs[x=1]",
            "runs[].ms.x",
            "[]",
            "[parts=2]",
        ] {
            assert_eq!(find(&document, nowhere), None, "{nowhere}");
        }
    }
}
