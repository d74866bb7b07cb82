//! A runtime as a process of its own, so that a test can kill it: reads the configuration file that it is given and serves until
//! it is told to stop (its standard input ends) or is killed.

use insane_runtime::config::Config;
use insane_runtime::server::Server;
use std::io::Read;

fn main() {
    if let Ok(filter) = std::env::var("LOG") {
        tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).with_ansi(false).init();
    }
    let path = std::env::args().nth(1).expect("the configuration file");
    let text = std::fs::read_to_string(&path).expect("it can be read");
    let server = Server::start(Config::parse(&text).expect("it is valid")).expect("the runtime starts");
    let _ = std::io::stdin().read(&mut [0u8; 1]);
    server.stop();
}
