//! Requested QoS to effective QoS, as a declared table (architecture §5; INSANE paper §5.2). On one host all data crosses
//! shared memory, so the table has one row; towards other hosts it goes over kernel UDP, the one datapath that there is so far.

use insane_wire::qos::{Acceleration, EffectiveQos, Qos, REFUSED, Reliability, Timing};

/// The name of this host's ceiling among the peers of a stream.
pub const LOCAL: &str = "local";

/// What a stream of this QoS gets between sessions of one host.
#[must_use]
pub fn local(requested: Qos) -> EffectiveQos {
    let mut served = requested;
    let mut reasons = Vec::new();
    if requested.timing() == Timing::Sensitive {
        served.set_timing(Timing::BestEffort);
        reasons.push(
            "timing=sensitive: between sessions of one host messages do not wait for a time-aware gate, they are \
             delivered at once"
                .to_owned(),
        );
    }
    EffectiveQos { qos: Some(served), datapath: "shm".into(), transport: "shm".into(), peer: LOCAL.into(), reasons }
}

/// What a stream of this QoS gets towards another host, over kernel UDP: the one datapath that there is so far.
#[must_use]
pub fn network(requested: Qos, host: &str) -> EffectiveQos {
    let mut served = requested;
    let mut reasons = Vec::new();
    if requested.acceleration() == Acceleration::Preferred {
        served.set_acceleration(Acceleration::None);
        reasons.push(format!("acceleration=preferred: this host and {host} have no accelerated datapath in common"));
    }
    if requested.timing() == Timing::Sensitive {
        served.set_timing(Timing::BestEffort);
        reasons.push("timing=sensitive: kernel UDP has no time-aware gate, messages go as soon as they can".to_owned());
    }
    let transport = if requested.reliability() == Reliability::Reliable { "reliable" } else { "datagram" };
    EffectiveQos {
        qos: Some(served),
        datapath: "udp".into(),
        transport: transport.into(),
        peer: host.to_owned(),
        reasons,
    }
}

/// What a stream of this QoS gets towards another host when `strict` was asked for and that host serves less: nothing, and why.
/// `None`: it serves all of it.
#[must_use]
pub fn refused(requested: Qos, host: &str) -> Option<EffectiveQos> {
    let served = network(requested, host);
    let reasons = served.reasons.iter().map(|reason| format!("refused under strict: {reason}")).collect();
    let less = !served.reasons.is_empty();
    less.then(|| EffectiveQos { datapath: REFUSED.into(), transport: REFUSED.into(), reasons, ..served })
}

#[cfg(test)]
mod tests {
    use super::{local, network, refused};
    use insane_wire::qos::{Acceleration, Qos, Reliability, Resources, Timing};

    #[test]
    fn every_combination_has_its_row() {
        for bits in 0..16u32 {
            let mut qos = Qos::default();
            qos.set_acceleration(if bits & 1 == 0 { Acceleration::None } else { Acceleration::Preferred });
            qos.set_resources(if bits & 2 == 0 { Resources::Frugal } else { Resources::Unlimited });
            qos.set_timing(if bits & 4 == 0 { Timing::BestEffort } else { Timing::Sensitive });
            qos.set_reliability(if bits & 8 == 0 { Reliability::BestEffort } else { Reliability::Reliable });
            let effective = local(qos);
            assert_eq!(effective.datapath, "shm");
            let served = effective.qos.unwrap();
            // A downgrade has a reason, and nothing else has one.
            assert_eq!(served != qos, !effective.reasons.is_empty(), "{qos:?}");
            assert_eq!(served.reliability(), qos.reliability());
            let effective = network(qos, "there");
            assert_eq!((effective.datapath.as_str(), effective.peer.as_str()), ("udp", "there"));
            let served = effective.qos.unwrap();
            assert_eq!(served != qos, !effective.reasons.is_empty(), "{qos:?}");
            assert_eq!(effective.transport == "reliable", served.reliability() == Reliability::Reliable);
            // Under `strict` what is served with a reason is not served.
            let none = refused(qos, "there");
            assert_eq!(none.is_some(), served != qos, "{qos:?}");
            assert!(none.is_none_or(|e| e.datapath == "none" && e.reasons.len() == effective.reasons.len()));
        }
    }
}
