import signal
import subprocess
import sys

from engine.data.undisturbed import deaf_from_the_start

STARTS = """
import os, signal
os.kill(os.getpid(), signal.SIGINT)
os.kill(os.getpid(), signal.SIGTERM)
print("still here")
"""


def test_a_signal_does_not_end_what_still_starts():
    with deaf_from_the_start(signal.SIGINT, signal.SIGTERM):
        ended = subprocess.run([sys.executable, "-c", STARTS], capture_output=True, text=True, timeout=60)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "still here\n", "")


def test_who_starts_hears_again():
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    with deaf_from_the_start(signal.SIGINT):
        assert signal.SIGINT in signal.pthread_sigmask(signal.SIG_BLOCK, ())
    assert signal.pthread_sigmask(signal.SIG_BLOCK, ()) == before
