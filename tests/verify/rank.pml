/*
 * Rank j of group i: async-dispatch-send, async-combine-recv, and the loop of
 * asap_ray/engine/attention.py over its two slots. LAYERS messages a slot stand for the layers of
 * one batch as well as of several, one after the other.
 */

#define RANK (i * T + j)
#define PLACE(z) (i * 2 + (z))
#define MINE(z) STAMP(epoch, z, sequence[z])
#define BUFFER(e) ((e) == 0 -> port : (e))
#define REPLY(e, z) reply[REGION(a, z) * E + (e)]
#define REPLIES(z) replies[REGION(a, z)]
#define SENT_BEFORE(e) ((WORD(BUFFER(e), PLACE(0)) | WORD(BUFFER(e), PLACE(1))) & BIT(j))
/* AttentionComm::has_room: what a dead incarnation sent has to be out of both slots once. */
#define CLEAR(e) (SOLO == 0 || BROKEN == OWN_SLOT || (was_clear & BIT(e)) || !SENT_BEFORE(e))
#define ROOM(e) ((pending & BIT(e)) && !(WORD(BUFFER(e), PLACE(s)) & BIT(j)) && CLEAR(e))
#define NUM_MESSAGES (WIDE(epoch) -> LAYERS : 2 * LAYERS)
/* With one region the bits of the other slot's replies stay until its turn. */
#define ARRIVED(e) ((owing[s] & REPLIES(s) & BIT(e)) && (BROKEN != ONE_REGION || REPLY(e, s) == MINE(s)))
#define LOST (MOE_CRASH && home != port)
#define GROUP_RECEIVED (received_by[(i * T + T - 1 - j) * 2 + s] >= sequence[s])

/* These three write to buffer b. */

inline begin_rows(e, z) { /* step 2 begins */
  if
  :: rows_for[z] & BIT(e) -> MESSAGE(b, PLACE(z), j).rows = UNFINISHED
  :: else
  fi
}

/* Step 2 ends, step 3. A message that is sent again may be empty though it was not at first. */
inline write_message(e, z, has_rows) {
  d_step {
    if
    :: has_rows ->
       MESSAGE(b, PLACE(z), j).rows = MINE(z);
       if
       :: WIDE(epoch) -> MESSAGE(b, PLACE(1), j).rows = MINE(z)
       :: else
       fi
    :: else
    fi;
    MESSAGE(b, PLACE(z), j).num_rows = (has_rows -> 1 : 0);
    MESSAGE(b, PLACE(z), j).offset = BELOW(rows_for[z], e);
    MESSAGE(b, PLACE(z), j).stamp = MINE(z)
  }
}

inline set_bit(z) { /* step 4 */
  WORD(b, PLACE(z)) = WORD(b, PLACE(z)) | BIT(j)
}

inline begin_message() {
  atomic {
    sequence[s]++;
    rows_for[s] = 0;
    for (e : 0 .. E - 1) {
      if
      :: rows_for[s] = rows_for[s] | BIT(e)
      :: !FULL
      fi
    }
    e = 0;
    owing[s] = rows_for[s];
    in_flight[s] = true;
    pending = ALL(E)
  }
}

inline dispatch_send() {
  begin_message();
  do
  :: pending == 0 -> break
  :: CLOSED(RANK) && BROKEN != DEAF -> goto over
  :: LOST -> reattach()
  :: d_step { /* 1: devices with room go first */
       ANY_E(ROOM) ->
       for (e : 0 .. E - 1) {
         if
         :: ROOM(e) ->
            ready = ready | BIT(e);
            was_clear = (SOLO -> was_clear | BIT(e) : 0);
            b = BUFFER(e);
            begin_rows(e, s);
            if
            :: WIDE(epoch) && (rows_for[s] & BIT(e)) -> MESSAGE(b, PLACE(1), j).rows = UNFINISHED
            :: else
            fi
         :: else
         fi
       }
     };
     for (e : 0 .. E - 1) {
       b = BUFFER(e);
       if
       :: !(ready & BIT(e))
       :: (ready & BIT(e)) && BROKEN != BIT_FIRST ->
          write_message(e, s, rows_for[s] & BIT(e));
          set_bit(s)
       :: (ready & BIT(e)) && BROKEN == BIT_FIRST ->
          set_bit(s);
          write_message(e, s, rows_for[s] & BIT(e))
       fi
     };
     atomic { pending = pending & ~ready; ready = 0; e = 0; b = 0 }
  od
}

inline combine_recv() {
  do
  :: owing[s] == 0 -> break
  :: CLOSED(RANK) -> goto over
  :: LOST -> reattach()
  :: atomic { /* 1; 2: take the bit */
       ANY_E(ARRIVED) ->
       if
       :: ARRIVED(0) -> e = 0
       :: ARRIVED(1) -> e = 1
       :: ARRIVED(2) -> e = 2
       fi;
       REPLIES(s) = (BROKEN == ONE_REGION -> REPLIES(s) : REPLIES(s) & ~BIT(e))
     };
     d_step { /* 2: check the header */
       if
       :: REPLY(e, s) == MINE(s) -> owing[s] = owing[s] & ~BIT(e)
       :: else /* of an older message: dropped */
       fi;
       e = 0
     }
  od;
#if MOE_CRASH
  if /* the control thread may take the lock here too */
  :: LOST -> reattach()
  :: true
  fi;
#endif
  read_results(); /* 3 begins */
  read_results(); /* 3 ends */
  d_step {
    REPLIES(s) = (BROKEN == ONE_REGION -> REPLIES(s) & ~rows_for[s] : REPLIES(s));
    in_flight[s] = false;
    num_received++;
    received_by[RANK * 2 + s] = (COLLECTIVE -> sequence[s] : 0)
  }
}

inline read_results() {
  d_step {
    for (e : 0 .. E - 1) {
      if
      :: rows_for[s] & BIT(e) ->
         assert(result[REGION(a, s) * E + BELOW(rows_for[s], e)] == RESULT(MINE(s), e))
      :: else
      fi
    }
    e = 0
  }
}

/* Attention of a message needs all ranks' results of the one before. */
inline collective() {
  do
  :: !COLLECTIVE || GROUP_RECEIVED -> break
  :: CLOSED(RANK) -> goto over
  :: LOST -> reattach()
  od
}

/*
 * AttentionComm::replace_device. In the code the control thread does this under the lock that every
 * step of a primitive holds and no wait does; here the rank does it wherever that lock is free.
 * Device 0 is dead, its successor has registered a new buffer. What the dead one had answered
 * counts; of a message it had been sent, what is still owed is sent again, and if nothing is,
 * an empty message in its place, for the device computes what all T ranks have sent.
 */
inline reattach() {
  port = home;
  b = home;
  for (z : 0 .. 1) {
    d_step {
      if
      :: (owing[z] & REPLIES(z) & 1) && REPLY(0, z) == MINE(z) && BROKEN != RESEND_BLIND ->
         owing[z] = owing[z] & ~1
      :: else
      fi;
      REPLIES(z) = (BROKEN == RESEND_BLIND -> REPLIES(z) : REPLIES(z) & ~1)
    };
    if
    :: BROKEN == NO_RESEND || sequence[z] == 0 || (z == s && (pending & 1)) -> skip
    :: else ->
       if
       :: owing[z] & 1 ->
          begin_rows(0, z);
          write_message(0, z, true);
          set_bit(z)
       :: !(owing[z] & 1) && T > 1 && BROKEN != OWED_ONLY ->
          write_message(0, z, false);
          set_bit(z)
       :: else
       fi
    fi
  };
  z = 0;
  b = 0
}

proctype rank(byte i; byte j) {
  byte a = RANK;
  byte epoch, port, b, s, z, e, pending, ready, num_received;
  byte sequence[2], owing[2], rows_for[2], was_clear;
  bool in_flight[2];
serve:
  {
    do
    :: num_received == NUM_MESSAGES -> break
    :: else ->
       if
       :: in_flight[s] -> combine_recv()
       :: else
       fi;
       if
       :: sequence[s] < LAYERS -> collective(); dispatch_send()
       :: else
       fi;
       if
       :: s = (WIDE(epoch) -> 0 : 1 - s) /* a solo batch runs alone */
       :: ANY_ORDER
       fi
    od;
    done = done | BIT(RANK);
    do /* idle: waits for the next batch */
    :: CLOSED(RANK) -> break
    :: LOST -> reattach()
    od;
over:
    skip
  }
#if GROUP_CRASH
  unless {
    (i == 0 && group_killed && epoch == 0) ->
    d_step {
      epoch = 1; a = SEAT(i, j, epoch); port = home;
      b = 0; s = 0; z = 0; e = 0; pending = 0; ready = 0; num_received = 0; was_clear = 0;
      sequence[0] = 0; sequence[1] = 0; owing[0] = 0; owing[1] = 0;
      rows_for[0] = 0; rows_for[1] = 0; in_flight[0] = false; in_flight[1] = false
    };
    (told == ALL(E) || BROKEN == TOLD_LATE);
    goto serve
  }
#endif
}
