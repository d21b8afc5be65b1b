"""``python -m refold.broker.relock``: resolve the roots again and rewrite the lock (maintainers only).

This is the one place that trusts the repository's metadata. Review the diff of the lock like code: every
line of it becomes a jar on the class path.
"""

from __future__ import annotations

import hashlib
import json
import tempfile
from pathlib import Path

from refold.broker.jars import LOCK_NAME, ROOTS


def resolve(repo_cache: Path) -> list[dict[str, str | int]]:
    """The roots and their compile and runtime dependencies. Blocks on the network (about 20 s)."""
    from jgo.maven import MavenContext, PythonResolver

    context = MavenContext(repo_cache=repo_cache, resolver=PythonResolver())
    roots = [context.create_dependency(coordinate) for coordinate in ROOTS]
    _, nodes = context.resolver.get_dependency_list(roots)  # the roots are not in this list
    wanted = [node.dep for node in nodes if node.dep.scope in ("compile", "runtime")]
    rows: dict[str, dict[str, str | int]] = {}
    for artifact in (dependency.artifact for dependency in (*roots, *wanted)):
        data = Path(artifact.resolve()).read_bytes()
        coordinate = f"{artifact.groupId}:{artifact.artifactId}:{artifact.version}"
        rows[coordinate] = {
            "coordinate": coordinate,
            "size": len(data),
            "sha256": hashlib.sha256(data).hexdigest(),
        }
    # The cache is flat: two jars of one file name would overwrite each other.
    names = {coordinate.split(":", 1)[1] for coordinate in rows}
    if len(names) != len(rows):
        raise SystemExit("two jars have the same file name: the flat cache layout has to change first")
    return [rows[coordinate] for coordinate in sorted(rows)]


def main() -> None:
    with tempfile.TemporaryDirectory() as scratch:
        rows = resolve(Path(scratch))
    lines = ",\n".join("    " + json.dumps(row) for row in rows)
    text = f'{{\n  "roots": {json.dumps(list(ROOTS))},\n  "jars": [\n{lines}\n  ]\n}}\n'
    Path(__file__).with_name(LOCK_NAME).write_text(text, encoding="utf-8")
    print(f"{len(rows)} jars, {sum(int(row['size']) for row in rows) / 1e6:.1f} MB")


if __name__ == "__main__":
    main()
