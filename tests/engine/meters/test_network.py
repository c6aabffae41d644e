"""What goes over a host's network, by the system's own files."""

from __future__ import annotations

from pathlib import Path

import pytest

from engine.meters.network import NetworkMeters


def put(path: Path, **texts: str | int) -> Path:
    for name, text in texts.items():
        file = path / name.replace("__", "/")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"{text}\n", "ascii")
    return path


def infiniband(system: Path, name: str, *, state: str = "4: ACTIVE", received: int = 0, sent: int = 0) -> Path:
    port = system / "infiniband" / name / "ports" / "1"
    return put(
        port, state=state, rate="400 Gb/sec (4X NDR)", counters__port_rcv_data=received, counters__port_xmit_data=sent
    )


def ethernet(system: Path, name: str, *, physical: bool = True, received: int = 0, sent: int = 0, **more: str) -> Path:
    interface = system / "net" / name
    if physical:
        (interface / "device").mkdir(parents=True)
    known = {"type": "1", "operstate": "up", "speed": "25000"} | more
    return put(interface, statistics__rx_bytes=received, statistics__tx_bytes=sent, **known)


def read_twice(system: Path, *changes: tuple[Path, str, int]) -> tuple[float | int | None, float | int | None]:
    """Bytes/s received and sent over two seconds in which files changed."""
    now_s = 10.0
    meters = NetworkMeters(system, clock=lambda: now_s)
    assert set(meters.read().reasons.values()) == {"first look"}
    for path, file, value in changes:
        (path / file).write_text(str(value), "ascii")
    now_s = 12.0
    figures = meters.read().values
    return figures["network_rx_bytes_per_s"], figures["network_tx_bytes_per_s"]


def test_ports_of_infiniband_count_words_of_four_bytes(tmp_path: Path) -> None:
    one, two = infiniband(tmp_path, "mlx5_0", received=100), infiniband(tmp_path, "mlx5_1")
    ethernet(tmp_path, "eth0")
    changes = ((one, "counters/port_rcv_data", 600), (two, "counters/port_xmit_data", 50))
    assert read_twice(tmp_path, *changes) == (1000.0, 100.0)
    assert NetworkMeters(tmp_path).peak_bytes_per_s() == 2 * 50e9


def test_without_a_port_that_is_up_ethernet_counts(tmp_path: Path) -> None:
    infiniband(tmp_path, "mlx5_0", state="1: DOWN")
    eth = ethernet(tmp_path, "eth0", received=7, sent=7)
    ethernet(tmp_path, "eth1", operstate="down")
    ethernet(tmp_path, "lo", physical=False, type="772")
    ethernet(tmp_path, "veth3", physical=False)
    changes = ((eth, "statistics/rx_bytes", 2007), (eth, "statistics/tx_bytes", 4007))
    assert read_twice(tmp_path, *changes) == (1000.0, 2000.0)
    assert [port.name for port in NetworkMeters(tmp_path).ports] == ["eth0"]


def test_a_container_counts_what_it_has(tmp_path: Path) -> None:
    ethernet(tmp_path, "eth0", physical=False, speed="-1")
    put(ethernet(tmp_path, "docker0", physical=False), bridge__bridge_id="8000")
    ethernet(tmp_path, "lo", physical=False, type="772")
    meters = NetworkMeters(tmp_path)
    assert ([port.name for port in meters.ports], meters.peak_bytes_per_s()) == (["eth0"], None)


@pytest.mark.parametrize("folder", ["net", "nothing"])
def test_a_host_without_a_network_says_so(tmp_path: Path, folder: str) -> None:
    (tmp_path / folder).mkdir()
    figures = NetworkMeters(tmp_path).read()
    assert set(figures.values.values()) == {None}
    assert set(figures.reasons.values()) == {"not supported"}


def test_a_port_that_goes_away_is_left_out_from_then_on(tmp_path: Path) -> None:
    now_s = 1.0
    gone, kept = infiniband(tmp_path, "mlx5_0"), infiniband(tmp_path, "mlx5_1")
    meters = NetworkMeters(tmp_path, clock=lambda: now_s)
    meters.read()
    (gone / "counters" / "port_rcv_data").unlink()
    assert meters.read().reasons["network_rx_bytes_per_s"] == "no data"
    meters.read()
    (kept / "counters" / "port_rcv_data").write_text("100", "ascii")
    now_s = 3.0
    assert meters.read().values["network_rx_bytes_per_s"] == 200.0
