"""The elastic launcher: one agent per host starts and watches workers, and what failed is started again, alone."""

from ..world.launcher.launched import Place
from .worker.places import MembershipListener, Memberships, membership, on_membership_change, place, progress

__all__ = ["MembershipListener", "Memberships", "Place", "membership", "on_membership_change", "place", "progress"]
