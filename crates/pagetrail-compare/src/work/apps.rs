//! The suite `apps`: a web server under load, a database under queries, a compiler, after the
//! study's SPECweb, OSDB and kernel compile.

use std::fmt::Write as _;
use std::fs;
use std::process::Command;

use anyhow::{Context, Result};

use super::disk::Files;
use super::{Done, Work, http, programs, timed};

pub(crate) const ALL: &[Work] = &[
    Work::new("web", web),
    Work {
        needs: Some("sqlite3"),
        ..Work::new("database", database)
    },
    Work {
        needs: Some("cc"),
        ..Work::new("compile", compile)
    },
];

fn web() -> Result<Done> {
    const CLIENTS: u64 = 4;
    const REQUESTS: u64 = 150;
    // Three pages of four are static; the others have 20 bytes.
    let expected = CLIENTS * REQUESTS / 4 * (3 * 8192 + 20);
    timed(|| http::load(CLIENTS, REQUESTS))?.is(expected)
}

/// Rows are inserted, indexed, updated in transactions, and summed.
fn database() -> Result<Done> {
    const ROWS: u64 = 15_000;
    let directory = Files::new()?;
    let program = programs::find("sqlite3").context("there is no program sqlite3")?;
    let mut script = format!(
        "create table t(id integer primary key, k integer, v text);\n\
         with recursive n(i) as (select 1 union all select i + 1 from n where i < {ROWS})\n\
         insert into t select i, i * 7919 % {ROWS}, printf('value %d', i) from n;\n\
         create index by_k on t(k);\n"
    );
    for part in 0..10 {
        writeln!(
            script,
            "begin; update t set k = k + 1 where id % 10 = {part}; commit;"
        )?;
    }
    script += "select sum(k) from t; select count(*) from t where v like '%99%';\n";
    timed(|| {
        let mut command = Command::new(program);
        command.arg(directory.path().join("database"));
        let output = programs::output(&mut command, &script)?;
        let mut sums = output.split_whitespace();
        Ok(sums.next().unwrap_or_default().parse()?)
    })?
    // Each number below ROWS once, and one more for each row.
    .is(ROWS * (ROWS - 1) / 2 + ROWS)
}

fn compile() -> Result<Done> {
    const FUNCTIONS: u64 = 60;
    let directory = Files::new()?;
    let program = programs::find("cc").context("there is no program cc")?;
    let (source, object) = (
        directory.path().join("source.c"),
        directory.path().join("object"),
    );
    let mut text = String::from("#include <stdio.h>\n#include <string.h>\n");
    for number in 0..FUNCTIONS {
        writeln!(
            text,
            "static int f{number}(int n, char *to) {{ int sum = {number}; for (int i = 0; i < n; i++) {{ \
             sum += i ^ (sum >> 3); if (sum % 7 == 0) sum -= snprintf(to, 9, \"%d\", sum); }} return sum; }}"
        )?;
    }
    text += "int main(void) { char to[9]; int sum = 0;\n";
    for number in 0..FUNCTIONS {
        writeln!(text, "sum += f{number}(3, to);")?;
    }
    text += "return sum == 0; }\n";
    fs::write(&source, text)?;
    let done = timed(|| {
        let mut command = Command::new(program);
        command.arg("-O1").arg("-o").arg(&object).arg(&source);
        programs::output(&mut command, "")?;
        Ok(FUNCTIONS)
    })?;
    programs::output(&mut Command::new(&object), "")?;
    Ok(done)
}
