"""`python -m engine.preflight RUN_FOLDER`: what every GPU and link of a run reaches, before anything is trained.

Knows, by its modules: which ranks measure together (rings), what a plan assumes (assumed), how ranks keep in step
without collectives (relay), how rates are measured (measuring) and what is too slow (judging).
"""
