/*
 * MoE device e: async-dispatch-recv in its receiving stream, async-combine-send in its sending one
 * (3.4.1; computing reads and writes private memory only and belongs to the sending stream here).
 */

#define DEVICE (RANKS + e)
#define KNOWN(p) ((p) / 2 == 0 && (told & BIT(e)) -> 1 : 0) /* the epoch of the place's group */
#define SENT(p, j) ((j) < T && (WORD(b, p) & BIT(j)))
/* Of a dead incarnation; or, after a restart of this device, of a message its group has finished. */
#define STALE_RANK(p, j) (SENT(p, j) && (EPOCH(MESSAGE(b, p, j).stamp) != KNOWN(p) || OLDER(p, j)))
#if T > 1
#define OLDER(p, j) (MOE_CRASH && BROKEN != KEEP_OLDER && SENT(p, 1 - (j)) && \
                     MESSAGE(b, p, j).stamp < MESSAGE(b, p, 1 - (j)).stamp)
#else
#define OLDER(p, j) false
#endif
#define STALE(p) ((p) < PLACES && (STALE_RANK(p, 0) || STALE_RANK(p, 1)))
#define READY(p) ((p) < PLACES && WORD(b, p) == ALL(T) && !STALE(p))
/* Each message of a place once and in order; a new device or a new group begins anew. */
#define IS_NEXT(stamp, last) ((stamp) == (last) + 1 || (b == E && (last) == 0) || \
                              (EPOCH(last) == 0 && (stamp) == STAMP(1, p % 2, 1)))

inline drop_stale() {
  for (p : 0 .. PLACES - 1) {
    for (j : 0 .. T - 1) {
      if
      :: STALE_RANK(p, j) -> WORD(b, p) = WORD(b, p) & ~BIT(j)
      :: else
      fi
    }
  };
  p = 0;
  j = 0
}

inline find_complete() { /* the policy is an argument */
  if
  :: LOWEST ->
     do
     :: READY(p) -> break
     :: else -> p++
     od
  :: !LOWEST && READY(0)
  :: !LOWEST && READY(1) -> p = 1
  :: !LOWEST && READY(2) -> p = 2
  :: !LOWEST && READY(3) -> p = 3
  :: !LOWEST && READY(4) -> p = 4
  :: !LOWEST && READY(5) -> p = 5
  fi
}

inline read_headers() {
  stamp = MESSAGE(b, p, 0).stamp;
  for (j : 0 .. T - 1) {
    assert(MESSAGE(b, p, j).stamp == stamp);
    has_rows = has_rows | (MESSAGE(b, p, j).num_rows << j);
    offsets = offsets | (MESSAGE(b, p, j).offset << (2 * j))
  };
  assert(IS_NEXT(stamp, taken[b * PLACES + p]));
  taken[b * PLACES + p] = stamp;
  j = 0
}

inline read_rows() {
  for (j : 0 .. T - 1) {
    assert(!(has_rows & BIT(j)) || MESSAGE(b, p, j).rows == stamp);
    assert(!(has_rows & BIT(j)) || !WIDE(EPOCH(stamp)) || MESSAGE(b, p + 1, j).rows == stamp)
  };
  j = 0
}

inline give_credit() {
  WORD(b, p) = WORD(b, p) & ~ALL(T)
}

proctype receiver(byte e) {
  byte b = e;
  byte p, j, stamp, has_rows, offsets;
live:
  {
    do
    :: CLOSED(DEVICE) -> break
    :: d_step { ANY_PLACE(STALE) -> drop_stale() }
    :: atomic { ANY_PLACE(READY) -> find_complete() }; /* 1 */
       if
       :: BROKEN == CREDIT_FIRST -> give_credit()
       :: else
       fi;
       d_step { read_headers(); read_rows() }; /* 2; 3 begins */
       if
       :: BROKEN == CREDIT_EARLY -> give_credit()
       :: else
       fi;
       d_step { read_rows() }; /* 3 ends */
       if
       :: BROKEN != CREDIT_FIRST && BROKEN != CREDIT_EARLY -> give_credit() /* 4 */
       :: else
       fi;
       if
       :: stream[e] ! p, stamp, has_rows, offsets
       :: CLOSED(DEVICE) -> break
       fi;
       d_step { p = 0; stamp = 0; has_rows = 0; offsets = 0 }
    od
  }
#if MOE_CRASH
  unless {
    (e == 0 && b == 0 && killed) ->
    if
    :: BROKEN == HUNG -> home = E
    :: home != 0 || CLOSED(DEVICE)
    fi;
    d_step { b = E; p = 0; j = 0; stamp = 0; has_rows = 0; offsets = 0 };
    goto live
  }
#endif
}

#define REPLY_SLOT REGION(a, p % 2)
#define OFFSET ((offsets >> (2 * j)) & 3)

inline set_reply() { /* step 3 */
  replies[REPLY_SLOT] = replies[REPLY_SLOT] | BIT(e)
}

inline combine_send() {
  if
  :: EPOCH(stamp) != KNOWN(p) -> skip /* results for a dead epoch are dropped */
  :: else ->
     for (j : 0 .. T - 1) {
       if
       :: has_rows & BIT(j) ->
          a = SEAT(p / 2, j, EPOCH(stamp));
          if /* the one thing that makes a device wait for a rank */
          :: BROKEN != ONE_REGION || !(replies[REPLY_SLOT] & BIT(e))
          :: BROKEN == ONE_REGION && CLOSED(DEVICE) -> goto over
          fi;
          if
          :: BROKEN == REPLY_FIRST -> set_reply()
          :: else
          fi;
          result[REPLY_SLOT * E + OFFSET] = UNFINISHED; /* 1 begins */
          d_step {
            result[REPLY_SLOT * E + OFFSET] = RESULT(stamp, e); /* 1 ends */
            reply[REPLY_SLOT * E + e] = stamp /* 2 */
          };
          if
          :: BROKEN != REPLY_FIRST -> set_reply()
          :: else
          fi
       :: else
       fi
     }
  fi
}

proctype sender(byte e) {
  byte a, p, j, stamp, has_rows, offsets;
live:
  {
    do
    :: stream[e] ? p, stamp, has_rows, offsets ->
       combine_send();
       atomic { a = 0; p = 0; j = 0; stamp = 0; has_rows = 0; offsets = 0 }
    :: CLOSED(DEVICE) -> break
    od;
over:
    skip
  }
#if MOE_CRASH
  unless { /* its owner restarts it: nothing of the dead process remains */
    (e == 0 && killed && home == 0 && BROKEN != HUNG) ->
    atomic {
      do
      :: stream[0] ? p, stamp, has_rows, offsets
      :: empty(stream[0]) -> break
      od;
      a = 0; p = 0; j = 0; stamp = 0; has_rows = 0; offsets = 0;
      home = E
    };
    goto live
  }
#endif
}
