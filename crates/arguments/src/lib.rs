//! Reads the command lines of INSANE's programs.
//!
//! Purpose: the same values read the same way everywhere ([`size`], [`seconds`], [`whole`]), and a mistake answered by one line
//! that names the argument and says what it takes ([`parse`], [`one_line`]). Non-purpose: what arguments mean. Layer: below
//! every program, above none.
//!
//! ```
//! assert_eq!(insane_arguments::size("8K"), Ok(8192));
//! assert!(insane_arguments::whole(1, 9)("10").unwrap_err().contains("1 to 9"));
//! ```
#![forbid(unsafe_code)]

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Command, Parser};
use std::ffi::{OsStr, OsString};
use std::time::Duration;

/// The largest message, in bytes.
pub const MOST_BYTES: usize = 128 << 20;

/// The longest time, in seconds: some thirty years, which every clock can add to now.
pub const MOST_SECONDS: f64 = 1e9;

/// The most characters of a value that a mistake is told with.
const SHOWN: usize = 80;

/// Reads a size in bytes, at most 128 MiB: `64`, `8K`, `128M`.
///
/// # Errors
/// What it takes.
pub fn size(text: &str) -> Result<usize, String> {
    let (digits, factor) = match text.char_indices().last() {
        Some((at, 'k' | 'K')) => (&text[..at], 1 << 10),
        Some((at, 'm' | 'M')) => (&text[..at], 1 << 20),
        _ => (text, 1),
    };
    let wrong = || "it takes a number of bytes up to 128M, such as 64, 8K or 1M".to_owned();
    let number = digits_only(digits).and_then(|d| d.parse::<usize>().ok()).ok_or_else(wrong)?;
    number.checked_mul(factor).filter(|n| *n <= MOST_BYTES).ok_or_else(wrong)
}

/// Reads a size in bytes of a message that carries a number: 8 to 128 MiB.
///
/// # Errors
/// What it takes.
pub fn numbered_size(text: &str) -> Result<usize, String> {
    size(text).ok().filter(|n| *n >= 8).ok_or_else(|| "it takes 8 bytes to 128M, such as 64, 8K or 1M".to_owned())
}

/// Reads a time in seconds: `10`, `0.5`.
///
/// # Errors
/// What it takes.
pub fn seconds(text: &str) -> Result<Duration, String> {
    let value: Option<f64> = text.parse().ok().filter(|v| (0.0..=MOST_SECONDS).contains(v));
    let time = value.and_then(|v| Duration::try_from_secs_f64(v).ok());
    time.ok_or_else(|| "it takes seconds from 0 to 1000000000, such as 10 or 0.5".to_owned())
}

/// Reads a rate: more than 0 a second.
///
/// # Errors
/// What it takes.
pub fn rate(text: &str) -> Result<f64, String> {
    let value: Option<f64> = text.parse().ok().filter(|v: &f64| (1e-6..=1e12).contains(v));
    value.ok_or_else(|| "it takes a number from 0.000001 to 1000000000000, such as 1000".to_owned())
}

/// A reader of whole numbers from `min` to `max`.
pub fn whole(min: u64, max: u64) -> impl Fn(&str) -> Result<u64, String> + Clone + Send + Sync + 'static {
    move |text| {
        let number = digits_only(text).and_then(|d| d.parse().ok()).filter(|n| (min..=max).contains(n));
        number.ok_or_else(|| format!("it takes a whole number from {min} to {max}"))
    }
}

/// Rust's own parser takes a leading plus too.
fn digits_only(text: &str) -> Option<&str> {
    (!text.is_empty() && text.bytes().all(|b| b.is_ascii_digit())).then_some(text)
}

/// Reads this process's command line. Prints help or the version, when asked for, and ends.
///
/// # Errors
/// The one line for a mistake.
pub fn parse<P: Parser>() -> Result<P, String> {
    P::try_parse().map_err(|e| {
        if matches!(e.kind(), ErrorKind::DisplayHelp | ErrorKind::DisplayVersion) {
            e.exit();
        }
        one_line(&e, P::command(), std::env::args_os())
    })
}

/// Whether a flag is on a command line, which may be wrong otherwise.
pub fn has_flag(arguments: impl IntoIterator<Item = OsString>, flag: &str) -> bool {
    arguments.into_iter().take_while(|a| a != "--").any(|a| a == flag)
}

/// Makes one line of a text: what would break it, or do something to a terminal, is escaped.
#[must_use]
pub fn flat(text: &str) -> String {
    let mut line = String::with_capacity(text.len());
    for c in text.chars() {
        if c.is_control() { line.extend(c.escape_default()) } else { line.push(c) }
    }
    line
}

fn short(text: &str) -> String {
    let cut: String = text.chars().take(SHOWN).collect();
    if cut.len() < text.len() { format!("{cut}…") } else { cut }
}

/// Says in one line what is wrong with a command line: which argument, and what it takes.
#[must_use]
pub fn one_line(error: &clap::Error, mut command: Command, arguments: impl IntoIterator<Item = OsString>) -> String {
    command.build();
    let (command, path) = reached(&command, arguments);
    let of = |kind| error.get(kind).map(|value| short(&words(value))).unwrap_or_default();
    let (argument, value) = (of(ContextKind::InvalidArg), of(ContextKind::InvalidValue));
    let line = match error.kind() {
        ErrorKind::ValueValidation => {
            let why = std::error::Error::source(error).map(ToString::to_string).unwrap_or_default();
            format!("{argument} is '{value}': {why}")
        }
        ErrorKind::InvalidValue if value.is_empty() => {
            format!("{argument} needs a value: {}", help(command, &argument))
        }
        ErrorKind::InvalidValue => format!("{argument} is '{value}': it takes {}", of(ContextKind::ValidValue)),
        ErrorKind::UnknownArgument => match of(ContextKind::SuggestedArg) {
            suggested if suggested.is_empty() => format!("unexpected argument '{argument}': see `{path} --help`"),
            suggested => format!("unexpected argument '{argument}': did you mean '{suggested}'? see `{path} --help`"),
        },
        ErrorKind::InvalidSubcommand => {
            format!(
                "there is no command '{}': `{path}` takes {}",
                of(ContextKind::InvalidSubcommand),
                commands(command)
            )
        }
        ErrorKind::MissingSubcommand | ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => {
            format!("a command is missing: `{path}` takes {}", commands(command))
        }
        ErrorKind::MissingRequiredArgument => {
            // One after the other: each has a help of its own.
            let first = match error.get(ContextKind::InvalidArg) {
                Some(ContextValue::Strings(all)) => all.first().map(|name| short(name)).unwrap_or_default(),
                _ => argument,
            };
            format!("{first} is missing: {}", help(command, &first))
        }
        ErrorKind::ArgumentConflict => match of(ContextKind::PriorArg) {
            prior if prior == argument => format!("{argument} is given twice: it takes one value, or none as a flag"),
            prior => format!("{argument} cannot be combined with {prior}"),
        },
        ErrorKind::TooManyValues => format!("{argument} is a flag and takes no value, not '{value}'"),
        ErrorKind::InvalidUtf8 => "an argument is no UTF-8 text".to_owned(),
        _ => {
            let text = error.render().to_string();
            text.split("\n\n").next().unwrap_or_default().trim_start_matches("error: ").to_owned()
        }
    };
    flat(&line)
}

fn words(value: &ContextValue) -> String {
    match value {
        ContextValue::Strings(all) => all.join(", "),
        other => other.to_string(),
    }
}

/// The command that a command line comes to, and its name in full.
fn reached(command: &Command, arguments: impl IntoIterator<Item = OsString>) -> (&Command, String) {
    let (mut at, mut path) = (command, command.get_name().to_owned());
    for argument in arguments.into_iter().skip(1) {
        let found = at.get_subcommands().find(|c| OsStr::new(c.get_name()) == argument);
        if let Some(next) = found {
            path = format!("{path} {}", next.get_name());
            at = next;
        }
    }
    (at, path)
}

fn commands(command: &Command) -> String {
    let names: Vec<&str> = command.get_subcommands().map(Command::get_name).filter(|n| *n != "help").collect();
    if names.is_empty() { "none".into() } else { names.join(", ") }
}

/// What the help says of an argument, which is named as in `--size <SIZE>`.
fn help(command: &Command, argument: &str) -> String {
    let known = command.get_arguments().find(|a| a.to_string() == argument);
    let text = known.and_then(|a| a.get_help()).map(|text| text.to_string()).unwrap_or_default();
    text.trim_end_matches('.').to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[derive(Debug, Parser)]
    #[command(name = "tool")]
    struct Tool {
        /// How much.
        #[arg(long, value_parser = size)]
        size: Option<usize>,
        /// Which one.
        name: String,
    }

    fn said(arguments: &[&str]) -> String {
        let arguments: Vec<OsString> =
            std::iter::once("tool").chain(arguments.iter().copied()).map(Into::into).collect();
        let error = Tool::try_parse_from(&arguments).expect_err("they are wrong");
        one_line(&error, Tool::command(), arguments)
    }

    #[test]
    fn values_are_read_within_their_limits() {
        assert_eq!((size("64"), size("8K"), size("128M")), (Ok(64), Ok(8192), Ok(MOST_BYTES)));
        for bad in ["", "K", "x", "-1", "+1", "129M", "1 K", "99999999999999999999", "18446744073709551615M"] {
            assert!(size(bad).is_err(), "{bad}");
        }
        assert!(numbered_size("7").is_err() && numbered_size("8") == Ok(8));
        assert_eq!(seconds("0.5"), Ok(Duration::from_millis(500)));
        for bad in ["", "-1", "nan", "inf", "1e10", "x"] {
            assert!(seconds(bad).is_err(), "{bad}");
        }
        assert!(rate("0").is_err() && rate("nan").is_err() && rate("1e3") == Ok(1000.0));
        assert_eq!(whole(1, 9)("9"), Ok(9));
        assert!(["0", "10", "", "+3", "3.0"].iter().all(|bad| whole(1, 9)(bad).is_err()));
    }

    #[test]
    fn a_mistake_is_one_line_with_the_argument_and_what_it_takes() {
        assert_eq!(
            said(&["a", "--size", "x\n\x1b[2J"]),
            "--size <SIZE> is 'x\\n\\u{1b}[2J': it takes a number of bytes up to 128M, such as 64, 8K or 1M"
        );
        assert_eq!(said(&["a", "--size"]), "--size <SIZE> needs a value: How much");
        assert_eq!(said(&[]), "<NAME> is missing: Which one");
        assert_eq!(
            said(&["a", "--sise", "1"]),
            "unexpected argument '--sise': did you mean '--size'? see `tool --help`"
        );
        assert!(said(&["a", "--size", "1", "--size", "2"]).contains("--size <SIZE> is given twice"));
        assert!(said(&["a", "--size", &"9".repeat(5000)]).chars().count() < 250);
        assert!(
            has_flag(["x".into(), "--json".into()], "--json") && !has_flag(["--".into(), "--json".into()], "--json")
        );
    }
}
