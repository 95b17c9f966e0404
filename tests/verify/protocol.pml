/*
 * The four primitives as a model for spin: the steps of csrc/include/asap/protocol.hpp by the same
 * numbers, over the buffers of asap_ray/layout.py. docs/verify.md says what is checked, what is
 * left out, and how many states there are; cases.py lists the instances.
 *
 * Payload has a value only in the sense of what it belongs to: rows carry the stamp (epoch, slot,
 * sequence) of their message, results that of their message and device; 0 while being written.
 * Whoever copies looks twice, so that a writer who comes too early is caught at either end.
 */

/* Size: D groups of T ranks, E devices, each at most 3; LAYERS messages a slot, at most 7; QUEUE items between streams. */
#ifndef FULL
#define FULL 0 /* 1: every message has rows for every device, else any or none */
#endif
#ifndef ANY_ORDER
#define ANY_ORDER 0 /* 1: a rank takes turns in any order of its slots (one may be empty); T = 1 */
#endif
#ifndef LOWEST
#define LOWEST 0 /* 1: a device takes the first ready message in order of places, else any */
#endif
#ifndef ABORT
#define ABORT 0 /* 1: the owner aborts at any time, one by one; else when all ranks are done */
#endif
#ifndef MOE_CRASH
#define MOE_CRASH 0 /* 1: device 0 dies at any time and comes back once; T <= 2 */
#endif
#ifndef GROUP_CRASH
#define GROUP_CRASH 0 /* 1: group 0 dies at any time and comes back once, with a new epoch */
#endif
#ifndef SOLO
#define SOLO 0 /* 1: the messages of groups are solo ones, of slot 0 and in both; 2: those of the group that comes back */
#endif
#ifndef BROKEN
#define BROKEN 0 /* one of these mistakes, each of which must be found */
#endif
#define ONE_REGION 1    /* both slots share one area of results and its bits (3.2 read literally) */
#define BIT_FIRST 2     /* dispatch_send: step 4 before steps 2 and 3 are over */
#define CREDIT_FIRST 3  /* dispatch_recv: step 4 before step 2 */
#define REPLY_FIRST 4   /* combine_send: step 3 before step 1 is over */
#define DEAF 5          /* who waits for room does not look at the abort flag */
#define RESEND_BLIND 6  /* what the dead device had answered is asked for again */
#define NO_RESEND 7     /* only new messages go to the new device */
#define OWED_ONLY 8     /* a rank that is owed nothing sends no empty message to the new device */
#define KEEP_OLDER 9    /* the device keeps an empty message older than its neighbours' */
#define SAME_BUFFER 10  /* a new group uses the buffer of the dead one */
#define TOLD_LATE 11    /* a new group sends before the devices know its epoch */
#define CREDIT_EARLY 12 /* dispatch_recv: step 4 before step 3 is over */
#define HUNG 13         /* the new device starts while the old one still sends */
#define OWN_SLOT 14     /* a new group waits for the dead one's message in the slot it sends to, no other */

#define BIT(n) (1 << (n))
#define ALL(n) (BIT(n) - 1)
#define RANKS (D * T)
#define PLACES (D * 2) /* (group i, slot s) at i * 2 + s */
#define BUFFERS (E + MOE_CRASH)
#define SEATS (RANKS + GROUP_CRASH * T)
#define COLLECTIVE (MOE_CRASH && T > 1)
#define UNFINISHED 0
#define STAMP(epoch, slot, sequence) ((epoch) * 16 + (slot) * 8 + (sequence))
#define EPOCH(stamp) ((stamp) >> 4)
#define WIDE(epoch) (SOLO == (epoch) + 1) /* its rows lie in both slots */
#define RESULT(stamp, e) ((stamp) * 4 + (e))
/* Reply offset: the devices before this one that get rows. E <= 3 */
#define BELOW(mask, e) (((e) > 0 && ((mask) & 1)) + ((e) > 1 && ((mask) & 2)))

#define ANY_E(what) (what(0) || what(1) || what(2))
#define ANY_PLACE(what) (what(0) || what(1) || what(2) || what(3) || what(4) || what(5))

/* A MoE device's buffer b: a message a (group, slot, rank), a word of T bits a (group, slot). */
typedef Message {
  byte stamp;    /* header: epoch, sequence */
  bit num_rows;  /* header: any or none */
  byte offset;   /* header: where the reply goes */
  byte rows      /* payload */
};
Message message[BUFFERS * PLACES * T];
byte word[BUFFERS * PLACES];
#define MESSAGE(b, p, j) message[((b) * PLACES + (p)) * T + (j)]
#define WORD(b, p) word[(b) * PLACES + (p)]

/* An attention rank's buffer a: results packed by reply offset, a header a device, a word of E bits; a slot. */
byte result[SEATS * 2 * E];
byte reply[SEATS * 2 * E];
byte replies[SEATS * 2];
#define REGION(a, slot) ((a) * 2 + (BROKEN == ONE_REGION -> 0 : (slot)))
#define SEAT(i, j, epoch) ((epoch) && BROKEN != SAME_BUFFER -> RANKS + (j) : (i) * T + (j))

chan stream[E] = [QUEUE] of { byte, byte, byte, byte }; /* 3.4.1: from the receiving to the sending stream */

byte closed;        /* abort flags: of rank r, of device RANKS + e */
byte done;          /* ranks that have received everything */
byte home;          /* device 0's buffer: 0, after its restart E */
bool killed;        /* device 0 */
bool group_killed;  /* group 0 */
byte told;          /* devices that know group 0's new epoch */
byte received_by[RANKS * 2]; /* what a collective of the group tells: the sequence each rank has received */
byte taken[BUFFERS * PLACES]; /* for the claim only: the stamp of the last item of a place */
#define CLOSED(who) (closed & BIT(who))

#include "rank.pml"
#include "device.pml"

/* Ends everything, in the end or in the middle. */
proctype owner() {
  byte who;
  if
  :: ABORT ->
     for (who : 0 .. RANKS + E - 1) {
       closed = closed | BIT(who)
     }
  :: done == ALL(RANKS) -> closed = ALL(RANKS + E)
  fi
}

proctype moe_killer() {
  killed = true
}

/* A new group sends when every device has answered `set_epoch`. */
proctype group_killer() {
  byte e;
  group_killed = true;
  for (e : 0 .. E - 1) {
    told = told | BIT(e)
  }
}

init {
  byte i, j, e;
  atomic {
    for (e : 0 .. E - 1) {
      for (i : 0 .. PLACES - 1) {
        taken[e * PLACES + i] = STAMP(0, i % 2, 0)
      }
      run receiver(e);
      run sender(e)
    }
    for (i : 0 .. D - 1) {
      for (j : 0 .. T - 1) {
        run rank(i, j)
      }
    }
    if
    :: MOE_CRASH -> run moe_killer()
    :: else
    fi;
    if
    :: GROUP_CRASH -> run group_killer()
    :: else
    fi;
    run owner();
    i = 0; j = 0; e = 0
  }
}
