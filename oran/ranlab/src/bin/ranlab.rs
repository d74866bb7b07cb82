//! The RAN lab's program.
#![forbid(unsafe_code)]

fn main() {
    print!("{}", insane_ranlab::config::DEFAULT_TOML);
}
