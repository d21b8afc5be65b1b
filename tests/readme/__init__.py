"""The README's programs as printed, and what the pages promise: links, commands, tests."""
