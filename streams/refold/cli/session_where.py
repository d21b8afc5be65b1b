"""``refold session where``: the owner of a session's partition and its copies, as the workers say it."""

from __future__ import annotations

import asyncio
from typing import Any, Final

from refold.client.owners import Owners
from refold.client.session import Session

#: Workers asked for what they have, at most; each is one small request.
ASKED_MAX: Final = 64


async def where(chat: Session, owners: Owners) -> dict[str, Any]:
    """What the command prints. ``state`` is ``None`` where the owner does not answer."""
    router, partition = owners.router, chat.partition
    owner = await router.owner(partition)
    in_line = router.in_line(partition)[:ASKED_MAX]
    asked = in_line if owner is None else [owner, *in_line]
    answers = await asyncio.gather(*(owners.partitions(worker) for worker in asked))
    said = {
        worker.instance: row
        for worker, rows in zip(asked, answers, strict=True)
        for row in rows or ()
        if row["partition"] == partition
    }
    own = None if owner is None else said.get(owner.instance)
    return {
        "session": f"{chat.tenant}/{chat.id}",
        "partition": partition,
        "owner": None if owner is None else owner.instance,
        "url": None if owner is None else owner.url,
        "state": None if own is None else own["state"],
        "members": router.members,
        "standbys": [
            {
                "instance": worker.instance,
                "url": worker.url,
                "behind": said[worker.instance]["behind"],
                "age_s": said[worker.instance]["age_s"],
            }
            for worker in in_line
            if worker.instance in said and said[worker.instance]["state"] == "standby"
        ],
    }
