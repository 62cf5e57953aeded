"""Kubernetes Events: how a team sees with ``kubectl describe`` what we think of an object of theirs.

https://kubernetes.io/docs/reference/kubernetes-api/cluster-resources/event-v1/ (the core form, which every version shows).
"""

import hashlib
from datetime import datetime
from typing import Final

from extproc.kubernetes.resources import Name, Object

COMPONENT: Final = "deltafence"
MESSAGE_CHARACTERS_MAX: Final = 1_024
"""The API refuses longer ones."""


def events_path(about: Object) -> str:
    """The collection in which the Event about an object belongs."""
    return f"/api/v1/namespaces/{Name.of(about).namespace or 'default'}/events"


def warning_event(about: Object, *, reason: str, message: str, now: datetime, instance: str) -> Object:
    """A warning about an object. ``reason`` is one UpperCamelCase word.

    Its name follows from the object's version, the reason and the message, so that many processors that see the same make one
    Event: the API answers all but the first with 409.
    """
    metadata = about["metadata"]
    seen = "\n".join((str(metadata.get("uid")), str(metadata["resourceVersion"]), reason, message))
    digest = hashlib.sha256(seen.encode()).hexdigest()[:16]
    at = now.strftime("%Y-%m-%dT%H:%M:%SZ")
    text = message if len(message) <= MESSAGE_CHARACTERS_MAX else message[: MESSAGE_CHARACTERS_MAX - 3] + "..."
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": f"{metadata['name'][:200]}.{digest}", "namespace": Name.of(about).namespace or "default"},
        "involvedObject": {
            "apiVersion": about.get("apiVersion"),
            "kind": about["kind"],
            "namespace": metadata.get("namespace"),
            "name": metadata["name"],
            "uid": metadata.get("uid"),
            "resourceVersion": metadata["resourceVersion"],
        },
        "type": "Warning",
        "reason": reason,
        "message": text,
        "source": {"component": COMPONENT},
        "reportingComponent": COMPONENT,
        "reportingInstance": instance,
        "firstTimestamp": at,
        "lastTimestamp": at,
        "count": 1,
    }
