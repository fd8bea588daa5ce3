"""What a coordinator works on: its topics, and the state that it makes of them."""

from dataclasses import dataclass

from checkpoints.checkpoint import Checkpoint
from connections.client_config import ClientConfig
from records.layout import TopicLayout


@dataclass(frozen=True, slots=True)
class LogAndState:
    """The topics of `layout` on a cluster, and the checkpoint with the state that is made of them."""

    client_config: ClientConfig
    layout: TopicLayout
    checkpoint: Checkpoint
