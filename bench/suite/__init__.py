"""The orchestrator of the comparison suite. Standard library only; see bench/README.md."""
