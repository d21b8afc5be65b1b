"""Bad input and bad surroundings on a real broker: each case of docs/concepts/bad-input.md."""
