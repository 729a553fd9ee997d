"""The base class of advisors: tuners that also stop trials, and that handle the manager's messages themselves."""

from __future__ import annotations

import logging
import os
import queue
import threading
import traceback
from typing import Any, Callable, Optional

from nni.recoverable import Recoverable
from nni.runtime.tuner_command_channel import CommandType, TunerCommandChannel

__all__ = ["MsgDispatcherBase"]

_logger = logging.getLogger(__name__)

#: Seconds after which an idle thread checks whether the advisor ends.
_TICK_S = 0.2


class MsgDispatcherBase(Recoverable):
    """Handles the manager's messages. Derive your own advisor and name it in ``advisor.className``.

    Its ``__init__`` connects to the manager, so only ``python -m nni`` creates an advisor. Two threads handle the
    messages: one the intermediate results and the ends of trials, the other one all others. An exception of a
    handler ends the advisor.
    """

    def __init__(self, command_channel_url: Optional[str] = None) -> None:
        super().__init__()
        #: Whether the advisor ends.
        self.stopping = False
        #: The exceptions of handlers.
        self.worker_exceptions: list[Exception] = []
        self.default_command_queue: queue.Queue[Any] = queue.Queue()
        self.assessor_command_queue: queue.Queue[Any] = queue.Queue()
        self._handlers: dict[CommandType, Callable[[Any], None]] = {
            CommandType.Initialize: self.handle_initialize,
            CommandType.RequestTrialJobs: self.handle_request_trial_jobs,
            CommandType.UpdateSearchSpace: self.handle_update_search_space,
            CommandType.ImportData: self.handle_import_data,
            CommandType.AddCustomizedTrialJob: self.handle_add_customized_trial,
            CommandType.ReportMetricData: self.handle_report_metric_data,
            CommandType.TrialEnd: self.handle_trial_end,
            CommandType.Ping: self.handle_ping,
        }
        self._channel = TunerCommandChannel(command_channel_url or os.environ["NNI_TUNER_COMMAND_CHANNEL"])
        self._channel.connect()

    def run(self) -> None:
        """Handles messages until the experiment ends.

        :raises Exception: the exception of a handler.
        """
        # The process of a tuner imports this module, too, and needs no serializer.
        from nni.common.serializer import load

        queues = (self.default_command_queue, self.assessor_command_queue)
        workers = [
            threading.Thread(target=self.command_queue_worker, args=(each,), daemon=True) for each in queues
        ]
        for worker in workers:
            worker.start()
        if os.environ.get("NNI_MODE") == "resume":
            self.load_checkpoint()
        while True:
            command, data = self._channel._receive()
            if command is None or command is CommandType.Terminate or self.worker_exceptions:
                break
            self.enqueue_command(command, load(data) if data else data)
        self.stopping = True
        for worker in workers:
            worker.join()
        if self.worker_exceptions:
            raise self.worker_exceptions[0]
        self._channel.disconnect()

    def report_error(self, error: str) -> None:
        """Sends an error to the manager."""
        try:
            self.send(CommandType.Error, error)
        except OSError:
            _logger.error("the connection to the manager is closed: %s", error)

    def send(self, command: CommandType, data: str) -> None:
        """Sends a message to the manager. ``data`` is JSON, as of ``nni.dump``."""
        self._channel._send(command, data)

    def enqueue_command(self, command: CommandType, data: Any) -> None:
        """Passes a message to the thread that handles it."""
        is_intermediate = command is CommandType.ReportMetricData and data["type"] == "PERIODICAL"
        is_assessed = command is CommandType.TrialEnd or is_intermediate
        (self.assessor_command_queue if is_assessed else self.default_command_queue).put((command, data))

    def command_queue_worker(self, command_queue: queue.Queue[Any]) -> None:
        """Handles the messages of a queue until the advisor ends or a handler raises."""
        while not self.stopping:
            try:
                command, data = command_queue.get(timeout=_TICK_S)
            except queue.Empty:
                continue
            try:
                self.process_command(command, data)
            except Exception as error:
                _logger.exception("%s has raised", type(self).__name__)
                self.worker_exceptions.append(error)
                self.stopping = True
                self.report_error("".join(traceback.format_exception(type(error), error, error.__traceback__)))
                # `run` waits for messages, and the closed connection ends this.
                self._channel.disconnect()

    def process_command(self, command: CommandType, data: Any) -> None:
        """Calls the handler of a message."""
        self._handlers[command](data)

    def handle_ping(self, data: Any) -> None:
        """Called regularly. Does nothing."""

    def handle_initialize(self, data: dict[str, Any]) -> None:
        """Receives the search space, once. Must send ``CommandType.Initialized``."""
        raise NotImplementedError(f"{type(self).__name__} has no handle_initialize")

    def handle_request_trial_jobs(self, data: int) -> None:
        """Must send this number of ``CommandType.NewTrialJob``, at once or later."""
        raise NotImplementedError(f"{type(self).__name__} has no handle_request_trial_jobs")

    def handle_update_search_space(self, data: dict[str, Any]) -> None:
        """Receives a changed search space."""
        raise NotImplementedError(f"{type(self).__name__} has no handle_update_search_space")

    def handle_import_data(self, data: list[Any]) -> None:
        """Receives results from elsewhere or from before a restart."""
        raise NotImplementedError(f"{type(self).__name__} has no handle_import_data")

    def handle_add_customized_trial(self, data: Any) -> None:
        """Receives the parameters of a trial that the user has added."""
        raise NotImplementedError(f"{type(self).__name__} has no handle_add_customized_trial")

    def handle_report_metric_data(self, data: dict[str, Any]) -> None:
        """Receives a result: ``parameter_id``, ``trial_job_id``, ``type``, ``sequence``, and ``value`` as JSON."""
        raise NotImplementedError(f"{type(self).__name__} has no handle_report_metric_data")

    def handle_trial_end(self, data: dict[str, Any]) -> None:
        """Receives the end of a trial: ``trial_job_id``, ``event``, and ``hyper_params`` as JSON."""
        raise NotImplementedError(f"{type(self).__name__} has no handle_trial_end")
