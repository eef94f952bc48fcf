"""Nodes that are bought for slices: those beyond what slices need, and what given slices cost."""

from collections.abc import Mapping

from solver.places import Place


def spare_nodes(place: Place, uses: Mapping[int, int], bought: Mapping[str, int]) -> dict[str, int]:
    """Configuration -> nodes bought beyond those that slices need, the dearest and largest first."""
    slack = {
        floor: sum(gpus * bought.get(host.configuration, 0) for host, gpus in place.hosts(floor))
        - sum(gpus * uses.get(c, 0) for c, gpus in place.slices(floor))
        for floor in place.floors()
    }
    sold = [(stock, place.kinds[stock.configuration]) for found in place.shared.values() for stock in found]
    spare = {}
    for stock, kind in sorted(sold, key=lambda of: (-of[0].usd_per_hour, -of[1].gpus[of[0].configuration])):
        gpus = kind.gpus[stock.configuration]
        held = [floor for floor in slack if floor.gpu == kind.gpu and floor.gpus <= gpus]
        most = min(slack[floor] for floor in held) // gpus
        spare[stock.configuration] = max(0, min(bought.get(stock.configuration, 0), most))
        for floor in held:
            slack[floor] -= gpus * spare[stock.configuration]
    return spare


def usd_of_slices(place: Place, uses: Mapping[int, int]) -> float:
    """USD per hour of nodes that hold the slices among `uses` (configuration -> nodes of templates).

    One way to buy them, not always the cheapest: the largest first, each on an open node that holds it, else
    on the cheapest one left.
    """
    usd, free = 0.0, dict[str, list[int]]()
    left = {stock.configuration: stock.nodes for stocks in place.shared.values() for stock in stocks}
    slices = [(place.kinds[name], name) for c in sorted(uses) if place.is_slice(name := place.names[c])]
    for kind, name in sorted(slices, key=lambda of: -of[0].gpus[of[1]]):
        gpus, opened = kind.gpus[name], free.setdefault(kind.gpu, [])
        for _ in range(uses[place.names.index(name)]):
            at = next((k for k, have in enumerate(opened) if have >= gpus), None)
            if at is not None:
                opened[at] -= gpus
                continue
            sold = place.shared.get(kind.gpu, ())
            hosts = [s for s in sold if kind.gpus[s.configuration] >= gpus and left[s.configuration]]
            host = min(hosts, key=lambda s: (s.usd_per_hour, s.configuration))
            left[host.configuration] -= 1
            usd += host.usd_per_hour
            opened.append(kind.gpus[host.configuration] - gpus)
    return usd
