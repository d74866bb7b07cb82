//! The stable error numbers that Rust, C, Python and REST share, each with the text that says what to do next.

/// A control message that could not be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    /// More bytes than a control message may have.
    #[error("a control message of {bytes} bytes is over the limit of {} bytes", crate::MAX_CONTROL_BYTES)]
    TooLong {
        /// How long it was.
        bytes: usize,
    },
    /// The bytes do not follow the message's encoding.
    #[error("malformed control message: {text}")]
    Malformed {
        /// What the decoder found.
        text: String,
    },
}

macro_rules! codes {
    ($($(#[$doc:meta])* $name:ident = $number:literal, $text:literal, $hint:literal;)*) => {
        /// A stable error number. Numbers are never reused; new ones are added at the end of their range.
        ///
        /// Ranges: 1–19 connection, 20–39 arguments, 40–59 names and QoS, 60–79 rights and quotas, 80–99 data path.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[repr(u32)]
        #[non_exhaustive]
        pub enum Code { $($(#[$doc])* $name = $number,)* }

        impl Code {
            /// Every code, in the order of the numbers.
            pub const ALL: &'static [Self] = &[$(Self::$name,)*];

            /// The stable number.
            #[must_use]
            pub const fn number(self) -> u32 { self as u32 }

            /// The code of a number, if there is one.
            #[must_use]
            pub const fn from_number(number: u32) -> Option<Self> {
                match number { $($number => Some(Self::$name),)* _ => None }
            }

            /// The name as C, Python and REST spell it: `RuntimeNotFound`.
            #[must_use]
            pub const fn name(self) -> &'static str { match self { $(Self::$name => stringify!($name),)* } }

            /// What happened, in one sentence without a full stop.
            #[must_use]
            pub const fn text(self) -> &'static str { match self { $(Self::$name => $text,)* } }

            /// What the user can do next.
            #[must_use]
            pub const fn hint(self) -> &'static str { match self { $(Self::$name => $hint,)* } }
        }
    };
}

codes! {
    /// No runtime listens on any of the paths that were tried.
    RuntimeNotFound = 1, "no INSANE runtime was found", "start `insaned`, or set INSANE_SOCKET to its socket";
    /// The runtime closed the connection, or was killed; the library reconnects by itself.
    RuntimeLost = 2, "the connection to the runtime is lost", "local channels go on; wait for the reconnect or restart `insaned`";
    /// Client and runtime share no protocol version.
    VersionMismatch = 3, "client and runtime speak no common protocol version", "install the same release of both";
    /// A message of the control protocol was malformed or came at the wrong time.
    Protocol = 4, "the other side broke the control protocol", "install the same release of both; report it if it stays";
    /// The call waited as long as it was allowed to.
    Timeout = 5, "the time allowed for the call ran out", "allow more time, or see `insane status` for what is missing";
    /// The session, stream, source or sink was closed.
    Closed = 6, "the session, stream, source or sink is closed", "open it again";
    /// A forked child used a session that belongs to its parent.
    Forked = 7, "a session does not survive fork()", "open a session of its own in the child";
    /// The runtime is stopping.
    ShuttingDown = 8, "the runtime is shutting down", "retry when it is back";
    /// The operating system refused something.
    System = 9, "the operating system refused a call", "see the error's text for the call and its cause";
    /// An argument has no meaning here.
    InvalidArgument = 20, "an argument is not valid", "see the error's text for which one and what it takes";
    /// A name is empty, too long or holds a control character.
    InvalidName = 21, "a name is empty, longer than 255 bytes or holds a control character", "choose another name";
    /// A message is larger than any slot may be.
    MessageTooLarge = 22, "the message is larger than the limit", "split it, or raise the session's memory quota";
    /// A buffer was emitted longer than it is.
    BufferOverrun = 23, "the length is more than the buffer holds", "get a larger buffer";
    /// A token is not one of this source's, or is too old to be remembered.
    UnknownToken = 24, "no such token, or its outcome is no longer remembered", "ask earlier, or raise the source's history";
    /// Nothing of this id exists.
    NotFound = 25, "nothing of this name or id exists", "see `insane status` for what does";
    /// The stream exists with another QoS.
    QosConflict = 40, "the stream exists with another QoS", "open it with the same QoS or under another name";
    /// Under `strict` the requested QoS cannot be served.
    QosUnavailable = 41, "the requested QoS cannot be served and strict was asked for", "see the reasons, or open without strict";
    /// Two names share one channel id, or a name and a plain id do.
    ChannelIdTaken = 42, "the channel id is in use under another name", "choose another channel name or id";
    /// An epoch or sink identity is already in use.
    IdentityTaken = 43, "this source epoch or sink identity is already open", "let the library choose it";
    /// The user may not connect, or may not use the domain.
    NotPermitted = 60, "this user has no right to do that", "ask the operator to add the user or group to the domain";
    /// A quota of the runtime's configuration is used up.
    QuotaExceeded = 61, "a quota is used up", "close what is not needed, or ask the operator to raise the quota named in the text";
    /// The peer's memory did not pass the checks.
    UntrustedMemory = 62, "a peer offered memory that is not sealed or not of the size it said", "the link was refused; report the peer";
    /// No free slot: every slot is held by sinks or by the application.
    NoBuffer = 80, "no free buffer: all are held by sinks or by this application", "release buffers, or raise the memory quota";
    /// A reliable sink did not make room in time and the source asked to fail.
    SinkFull = 81, "a reliable sink made no room before the deadline", "retry, or let the source drop such sinks";
    /// Nothing is there to consume.
    WouldBlock = 82, "nothing to consume now", "wait for the sink or poll again";
    /// The wait was ended by another thread.
    Interrupted = 83, "the wait was interrupted", "wait again";
}

#[cfg(test)]
mod tests {
    use super::Code;

    #[test]
    fn numbers_are_unique_ascending_and_round_trip() {
        let numbers: Vec<u32> = Code::ALL.iter().map(|c| c.number()).collect();
        assert!(numbers.windows(2).all(|w| w[0] < w[1]));
        for code in Code::ALL {
            assert_eq!(Code::from_number(code.number()), Some(*code));
            assert!(!code.text().ends_with('.') && !code.hint().is_empty());
        }
        assert_eq!(Code::from_number(0), None);
    }
}
