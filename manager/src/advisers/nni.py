"""Runs NNI's dispatcher as `python -m nni` does, with two corrections. NNI itself is not changed.

The advisors of NNI 3.0 use texts as the identifiers of proposals, but its `recoverable.py` compares every identifier with a
number. Without the correction, Hyperband and BOHB fail at their first result.

NNI's dispatcher sends no message about a result that its assessor accepts, so a hanging assessor cannot be distinguished from
one that accepts all results. With the correction, the dispatcher reports, as `_done_`, how many messages the assessor's thread
has processed. If another version of NNI has a different structure, the dispatcher runs without the reports.
"""

import runpy


def compare_numbers_only():
    from nni.recoverable import Recoverable
    compare = Recoverable.is_created_in_previous_exp
    Recoverable.is_created_in_previous_exp = lambda self, name: not isinstance(name, str) and compare(self, name)


def report_processed_messages():
    from nni.runtime.msg_dispatcher_base import MsgDispatcherBase
    initialize = MsgDispatcherBase.__init__

    def initialize_and_count(self, *args, **kwargs):
        initialize(self, *args, **kwargs)
        queue, send = self.assessor_command_queue, self._channel._channel.send
        get, taken, reported = queue.get, 0, None

        # The thread asks for the next message after it has processed the previous one.
        def get_and_report(*args, **kwargs):
            nonlocal taken, reported
            if reported != taken:
                reported = taken
                try:
                    send({'type': '_done_', 'content': str(taken)})
                except Exception:
                    pass  # The connection is closed; the thread that receives messages detects that.
            message = get(*args, **kwargs)
            taken += 1
            return message

        queue.get = get_and_report

    MsgDispatcherBase.__init__ = initialize_and_count


for correct in [compare_numbers_only, report_processed_messages]:
    try:
        correct()
    except (ImportError, AttributeError):
        pass  # NNI itself reports a missing part more precisely.
runpy.run_module('nni', run_name='__main__', alter_sys=True)
