//! An application with one source, so that a test can stop it: does what each line of its standard input says and answers with a line.
//! `emit N` emits so many messages; `wait N` waits for so many sinks and says how many there are; `counts` says what was intended, and
//! what of that has ended here. The runtime's socket and `reliable` or `best-effort` are its arguments.

use insane::Session;
use insane_tests_host::account;
use insane_tests_network::{LIMIT, reliable};

fn main() {
    let mut arguments = std::env::args().skip(1);
    let socket = arguments.next().expect("the runtime's socket");
    let qos = if arguments.next().as_deref() == Some("reliable") { reliable() } else { insane::Qos::default() };
    let session = Session::builder("emitter").socket(socket).open().expect("a runtime");
    let source = session.stream(qos).expect("a stream").source("stopped").expect("a source");
    for line in std::io::stdin().lines().map_while(Result::ok) {
        match line.split_once(' ').map(|(what, n)| (what, n.parse().expect("a number"))) {
            Some(("emit", n)) => {
                (0..n).for_each(|_| {
                    source.send(b"from the emitter").expect("a message");
                });
                println!("{n}");
            }
            Some(("wait", n)) => println!("{}", source.wait_for_sinks(n, LIMIT)),
            _ => {
                let sum = account(&session.counts());
                println!("{} {}", sum.intended, sum.at_source);
            }
        }
    }
}
