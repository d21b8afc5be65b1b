"""The deterministic simulator: the real engine on a simulated Kafka, disk and clock. See README.md."""
