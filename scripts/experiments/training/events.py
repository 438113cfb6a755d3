"""The metrics of a seed for TensorBoard, in a folder of this machine or of a bucket."""

import time
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace

from tensorboardX.event_file_writer import EventsWriter
from tensorboardX.proto import event_pb2
from tensorboardX.record_writer import register_writer_factory
from tensorboardX.summary import scalar

from experiments import files, storage

# protoc generates these classes without types
Event, SessionLog = (vars(event_pb2)[name] for name in ("Event", "SessionLog"))


class EventLog:
    """A file of events whose first entries are of a given epoch."""

    def __init__(self, folder: Path, first: int):
        """Open the file and purge the events that an interrupted run wrote after its checkpoint.

        Args:
          folder: Folder for the files of all starts.
          first: The first epoch.
        """
        self.folder = folder
        storage.make_folder(folder)
        # File names differ by seconds: without the suffix, a run that resumes within one second
        # would overwrite its own file.
        with files.name_path(folder):
            prefix = str(folder / "events")
            self._writer = EventsWriter(prefix, filename_suffix=f".from-epoch-{first}")
            start = SessionLog(status=SessionLog.START)
            self._writer.write_event(Event(step=first, session_log=start))

    def add(self, epoch: int, values: Mapping[str, float]) -> None:
        """Write the values of an epoch."""
        with files.name_path(self.folder):
            for name, value in values.items():
                event = Event(step=epoch, wall_time=time.time(), summary=scalar(name, value))
                self._writer.write_event(event)
            self._writer.flush()

    def close(self) -> None:
        """Write the remaining events."""
        with files.name_path(self.folder):
            self._writer.close()


class ObjectWriter:
    """A file of events in a bucket, rewritten whole because a bucket cannot append.

    This class replaces tensorboardX's own writers, which need another client library for each kind
    of bucket.
    """

    def __init__(self, path: str):
        self.path, self.content = storage.location(path), bytearray()

    def write(self, content: bytes) -> None:
        """Add an event, which the next `flush` writes."""
        self.content += content

    def flush(self) -> None:
        """Write all events to the object.

        Raises:
          InputError: The bucket cannot be written.
        """
        with storage.reachable(self.path):
            self.path.write_bytes(bytes(self.content))

    close = flush


for _scheme in storage.SCHEMES:
    register_writer_factory(_scheme, SimpleNamespace(open=ObjectWriter))
