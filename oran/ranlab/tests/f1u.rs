//! Delivery status frames as somebody else reads them: Wireshark's dissector of the NR user plane protocol.

use std::process::Command;

use insane_ranlab::core::f1u::DeliveryStatus;

/// A capture of raw NR user plane frames, whose link type is the first of those left to the user.
fn capture(frames: &[Vec<u8>]) -> Vec<u8> {
    let mut file = Vec::new();
    for word in [0xa1b2_c3d4_u32, 0x0004_0002, 0, 0, 65_535, 147] {
        file.extend_from_slice(&word.to_le_bytes());
    }
    for frame in frames {
        let length = frame.len() as u32;
        for word in [0, 0, length, length] {
            file.extend_from_slice(&word.to_le_bytes());
        }
        file.extend_from_slice(frame);
    }
    file
}

#[test]
fn wireshark_reads_the_same_in_our_frames() {
    if Command::new("tshark").arg("--version").output().is_err() {
        println!("SKIPPED: tshark is not installed");
        return;
    }
    let frames = [
        DeliveryStatus { desired_buffer: 10_000_000, transmitted: Some(0x03_ffff), ..DeliveryStatus::default() },
        DeliveryStatus {
            desired_buffer: 7,
            desired_rate: Some(5_000_000),
            lost: vec![(3, 9), (11, 11)],
            delivered: Some(2),
            transmitted: Some(12),
            ..DeliveryStatus::default()
        },
        DeliveryStatus { final_frame: true, cause: Some(1), ..DeliveryStatus::default() },
    ];
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("f1u.pcap");
    std::fs::write(&file, capture(&frames.clone().map(|f| f.encode()))).unwrap();
    let fields = [
        "pdu_type",
        "final_frame_ind",
        "desrd_buff_sz_data_radio_bearer",
        "desrd_data_rate",
        "num_lost_nru_seq_num",
        "start_num_lost_nru_seq_num",
        "end_num_lost_nru_seq_num",
        "high_success_delivered_nr_pdcp_sn",
        "high_tx_nr_pdcp_sn",
        "cause_val",
    ];
    let mut command = Command::new("tshark");
    command.args(["-r", file.to_str().unwrap(), "-T", "fields", "-E", "separator=;", "-E", "occurrence=a"]);
    command.args(["-o", r#"uat:user_dlts:"User 0 (DLT=147)","nrup","0","","0","""#]);
    fields.iter().for_each(|field| {
        command.args(["-e", &format!("nrup.{field}")]);
    });
    let output = command.output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    // Whether a flag prints as 1 or True depends on Wireshark's version.
    let text = text.replace("True", "1").replace("False", "0");
    let lines: Vec<&str> = text.lines().collect();
    let expected = ["1;0;10000000;;;;;;262143;", "1;0;7;5000000;2;3,11;9,11;2;12;", "1;1;0;;;;;;;1"];
    assert_eq!(lines, expected, "{}", String::from_utf8_lossy(&output.stderr));
}
