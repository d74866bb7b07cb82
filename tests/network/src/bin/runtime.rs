//! A runtime as a process of its own, so that a test can kill it: reads the configuration file that it is given and serves until
//! it is told to stop (its standard input ends) or is killed. Five more numbers are how many frames of a million that it sends are
//! lost, repeated, delayed and changed, and the seed of that.

use insane_datapath::fault::{Faulty, Plan};
use insane_runtime::config::Config;
use insane_runtime::server::Server;
use std::io::Read;

fn main() {
    if let Ok(filter) = std::env::var("LOG") {
        tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).with_ansi(false).init();
    }
    let path = std::env::args().nth(1).expect("the configuration file");
    let text = std::fs::read_to_string(&path).expect("it can be read");
    let config = Config::parse(&text).expect("it is valid");
    let faults: Vec<u64> = std::env::args().skip(2).map(|n| n.parse().expect("a number")).collect();
    let server = match faults[..] {
        [lose, repeat, delay, change, seed] => {
            let [lose_ppm, repeat_ppm, delay_ppm, change_ppm] = [lose, repeat, delay, change].map(|n| n as u32);
            let plan = Plan { lose_ppm, repeat_ppm, delay_ppm, change_ppm, cut: false };
            Server::start_over(config, move |_, datapath| Box::new(Faulty::new(datapath, plan, seed)))
        }
        _ => Server::start(config),
    };
    let server = server.expect("the runtime starts");
    let _ = std::io::stdin().read(&mut [0u8; 1]);
    server.stop();
}
