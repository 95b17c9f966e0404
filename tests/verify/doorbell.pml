/*
 * Doorbell, Sleeper and wait_until of csrc/include/asap/wait.hpp: no wake-up is lost, even if a
 * sleep had no end of its own (there it ends after kSliceS). RINGERS set a flag each, WAITERS wait
 * for all of them; one more waiter was killed asleep and left its count behind.
 */

#ifndef BROKEN
#define BROKEN 0
#endif
#define LOOK_FIRST 1 /* a waiter looks at its flags before it reads `rings` */
#define RING_FIRST 2 /* a ringer bumps `rings` before it sets its flag */
#define ALL ((1 << RINGERS) - 1)

byte flags;
byte rings;
byte waiters = 1;
bool asleep[WAITERS];

inline set_flag() {
  flags = flags | (1 << n)
}

proctype ringer(byte n) {
  byte w;
  if
  :: BROKEN == RING_FIRST -> rings++; set_flag()
  :: else -> set_flag(); rings++
  fi;
  if
  :: waiters == 0
  :: else ->
     d_step { /* FUTEX_WAKE */
       for (w : 0 .. WAITERS - 1) {
         asleep[w] = false
       }
     }
  fi
}

proctype waiter(byte w) {
  byte seen;
  bool ready;
  do
  :: ready -> break
  :: else ->
     ready = (flags == ALL);
     waiters++;
     seen = rings;
     if
     :: BROKEN != LOOK_FIRST -> ready = (flags == ALL)
     :: else
     fi;
     if
     :: ready
     :: else ->
        d_step { asleep[w] = (rings == seen) }; /* FUTEX_WAIT compares and sleeps in one step */
        !asleep[w]
     fi;
     waiters--
  od
}

init {
  byte n;
  atomic {
    for (n : 0 .. WAITERS - 1) {
      run waiter(n)
    }
    for (n : 0 .. RINGERS - 1) {
      run ringer(n)
    }
  }
}
