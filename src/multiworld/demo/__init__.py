"""The main job: a real model served through a rhombus of processes, with real faults, checked answer by answer."""
