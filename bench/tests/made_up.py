"""What several tests make up alike."""

#: The facts about a machine and a run, as a report takes them.
MACHINE = {
    "cpu": "x", "logical_cpus": 4, "virtual": False, "kernel": "k", "load_average": [0.0], "absent": {}, "notes": [],
    "run": {"pair": [0, 1], "seed": 1, "rounds": 3, "seconds": 1.0, "extent": "quick", "drift_percent": 20.0, "discarded": 0,
            "failed": 0},
}
