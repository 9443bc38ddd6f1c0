from __future__ import annotations

from dewmark.text.windows import ABSENT, window_texts, windows_of
from dewmark_lab.testing.fake_host import FakeHost


def test_windows_leave_out_special_and_unknown_ids() -> None:
    """0 is a special token, 305 an id that the model does not have."""
    host = FakeHost(300, padded_vocab=5)
    windows = windows_of((5, 6, 0, 7, 305, 8), k=2, host=host.info)
    assert windows.tolist() == [[ABSENT, ABSENT], [ABSENT, 5], [5, 6], [6, ABSENT], [ABSENT, 7], [7, ABSENT]]
    assert windows_of((), k=2, host=host.info).shape == (0, 2)
    two = host.tokenizer.decode([[5, 6]])
    assert window_texts(host.tokenizer, [windows[2], windows[0]]) == [*two, ""]
