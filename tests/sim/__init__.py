"""Whole servers under virtual time: the real tree, a scripted engine, a disk that fails, and one seed.

``plan.py`` draws a run from its seed: sizes, clients with their conversations, troubles. ``world.py``
lives it: one process (``process.py``: ``runtime.app.build_tree`` over ``tests/kit/disk.py``) after the
other, clients (``client.py``) that submit, read, leave and ask again, troubles (``mishaps.py``).
``books.py`` and ``checks.py`` judge. Threads are real and run one at a time, in an order that the seed
decides (``tests/cache/turns.py``).

Troubles: crashes of every actor and supervisor, on any message or between two, and storms of them;
faults of a step of the engine, poisonous prompts; threads that die inside an operation of the disk;
errors of every call of the disk, short calls, a full disk, a slow one, flipped bits; SIGTERM, SIGKILL
and power losses at any operation; jumps of the wall clock; clears, drains, flushes, closed sessions,
memory pressure, bursts, slow readers, clients that leave.

What must hold (numbers as in DESIGN §7):

1. A state's bytes tell its tokens and namespace, and whoever is lent one looks at every byte: after reuse
   in RAM, a restore, a restart.
2. (Logits: no engine here has any.) A reply follows from the prompt alone, whatever it was decoded from.
3. A retained state is never changed: the same look at its bytes, each time it is lent.
4. Whatever residency was told is durable, or a flush or an exit code of 0 said so, is found by every later
   scan, unless it left in a way that is known: evicted above the cap, cleared, quarantined after a fault.
   What was cleared comes back neither in RAM nor from disk. What was published is in a tier, or counted as
   lost.
5. A flush that says durable leaves nothing of what RAM held off the disk; one that does not says why; at
   rest only what had to be let go keeps it from being durable, and it says so once.
6. Every request has one end, and it is the right one: Finished with exactly the expected text and counts,
   Cancelled only for who left, Failed only for who was blamed for two crashes, refused only with cause. At
   rest there is no lease, no waiting take, no row, no open ask, no call, and at the end no task and no
   thread.
7. (Lag of the loop: time is virtual here.)
8. No prefix is lent that was not published in its namespace, nor more of it than its kind of state serves,
   nor all of a prompt. RAM stays below its hard ceiling, the disk tier below its cap, files and figures
   agree.
9. A request's tokens depend on nothing but itself, whatever shares its batch, and however often it is
   resumed.

Besides: counters never go backwards in a process, ``check_integrity()`` of every actor holds (at any
moment where its books are the loop's alone), every failure is one of the plan's, every dead letter has
its reason, and the process always starts again.
"""
