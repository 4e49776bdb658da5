//! The machine of the measurement.

use std::fs;
use std::process::Command;

use anyhow::{Context, Result};

use crate::clock;
use crate::peer::Kind;
use crate::server::Servers;

/// Names and values, to print.
pub type Machine = Vec<(String, String)>;

/// Tools whose version matters, with the command that prints it.
const TOOLS: [(&str, &str, &str); 6] = [
    ("Java", "java", "--version"),
    ("Python", "python3", "--version"),
    ("Node", "node", "--version"),
    ("Go", "go", "version"),
    ("Rust", "rustc", "--version"),
    ("PostgreSQL", "psql", "--version"),
];

pub fn describe(servers: &Servers) -> Result<Machine> {
    let mut machine = Machine::new();
    let mut add = |name: &str, value: String| machine.push((name.to_owned(), value));
    let processors = std::thread::available_parallelism()?.get();
    let model = field("/proc/cpuinfo", "model name").unwrap_or_default();
    add("Processors", format!("{processors} × {model}"));
    add("Memory", field("/proc/meminfo", "MemTotal").unwrap_or_default());
    let kernel = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    add("Linux", kernel.trim().to_owned());
    let mut redis = servers.start(&Kind::rlock(), false)?;
    add("Redis", redis.redis_version()?.unwrap_or_default());
    add("Module", module_version(redis.control()?)?);
    for (name, program, argument) in TOOLS {
        let output = Command::new(program).arg(argument).output();
        let said = output.ok().filter(|output| output.status.success());
        if let Some(line) =
            said.and_then(|said| String::from_utf8_lossy(&said.stdout).lines().next().map(str::to_owned))
        {
            add(name, line);
        }
    }
    add("Date", clock::utc_date());
    Ok(machine)
}

fn field(path: &str, name: &str) -> Option<String> {
    let text = fs::read_to_string(path).ok()?;
    text.lines().find_map(|line| Some(line.strip_prefix(name)?.split_once(':')?.1.trim().to_owned()))
}

fn module_version(control: &mut redis::Connection) -> Result<String> {
    let modules: Vec<redis::Value> = redis::cmd("MODULE").arg("LIST").query(control)?;
    let fields = modules.into_iter().next().context("the server has no module")?;
    let fields: Vec<redis::Value> = redis::from_redis_value(fields)?;
    let mut fields = fields.into_iter();
    while let (Some(name), Some(value)) = (fields.next(), fields.next()) {
        if redis::from_redis_value::<String>(name).is_ok_and(|name| name == "ver") {
            let number: u32 = redis::from_redis_value(value)?;
            return Ok(format!("{}.{}.{}", number / 10_000, number / 100 % 100, number % 100));
        }
    }
    Ok(String::new())
}
