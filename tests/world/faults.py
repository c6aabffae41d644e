"""All faults: FAULTS by name, in the order of the table."""

from __future__ import annotations

import fault_row
import faults_in_ranks
import faults_of_disks
import faults_of_meeting
import faults_of_processes

__all__ = ["FAULTS"]

_ORDER = (faults_in_ranks, faults_of_processes, faults_of_disks, faults_of_meeting)
FAULTS = {
    name: row for module in _ORDER for name, row in fault_row.FAULTS.items() if row.do.__module__ == module.__name__
}
