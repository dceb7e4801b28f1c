/* Move bytes from one process to another through a window of memory that both map, without the interpreter.
 *
 * A pipe leads one way. Its writer and its reader each count the bytes that went by, and look at the other's count. Who
 * finds nothing to do for a while says that it rests, and is told by a message when there is something again; which
 * of the two it is, both learn without a lock: each first writes its own word and then reads the other's.
 *
 * channel/shared_memory/pipe.py has the same in Python, for where there is no compiler, and says what the words mean. Slots
 * (channel/shared_memory/slots.py) are counted in the same way: an end of theirs is one whose size is a number of slots.
 */
#define _GNU_SOURCE
#include <poll.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdint.h>
#include <string.h>
#include <time.h>

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

#define VERSION 6
#define YIELD_AFTER_NS 20000
#define LOOKS_PER_POLL 4 /* of 32 turns each: a few microseconds */
#define VECTORS_FROM 4096
#define NONSENSE UINT64_MAX

_Static_assert(ATOMIC_LLONG_LOCK_FREE == 2, "two processes can share a counter only if it needs no lock");

typedef struct {
    char *window;
    uint64_t size;
    uint64_t chunk;
    _Atomic uint64_t *count; /* ours: how many bytes went by */
    _Atomic uint64_t *their_count;
    _Atomic uint64_t *rest; /* ours: odd while we rest */
    _Atomic uint64_t *their_rest;
    uint64_t position; /* our count */
    uint64_t rung;     /* the rest of theirs that we have ended */
    uint64_t bell;     /* set: they are to be told */
    _Atomic uint64_t interruptions;
} pipe_end;

uint64_t multiworld_version(void) { return VERSION; }

static uint64_t now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static void pause_briefly(void)
{
#if defined(__SSE2__)
    _mm_pause();
#elif defined(__aarch64__)
    __asm__ __volatile__("yield");
#endif
}

/* Return how far their count is beyond `seen`, once it is or after `spin_ns`. */
static int64_t watch(const pipe_end *end, uint64_t seen, uint64_t spin_ns)
{
    int64_t beyond = (int64_t)(atomic_load_explicit(end->their_count, memory_order_acquire) - seen);
    if (beyond > 0 || spin_ns == 0)
        return beyond;
    uint64_t began = now_ns(), waited = 0;
    do {
        for (int turn = 0; turn < 32 && beyond <= 0; turn++) {
            pause_briefly();
            beyond = (int64_t)(atomic_load_explicit(end->their_count, memory_order_acquire) - seen);
        }
        if (waited > YIELD_AFTER_NS)
            sched_yield();
        waited = now_ns() - began;
    } while (beyond <= 0 && waited < spin_ns);
    return beyond;
}

static void ring(pipe_end *end)
{
    uint64_t rest = atomic_load_explicit(end->their_rest, memory_order_relaxed);
    if ((rest & 1) && rest != end->rung) {
        end->rung = rest;
        end->bell = 1;
    }
}

/* Tell our count to who looks at it. */
static void publish(pipe_end *end)
{
    atomic_store_explicit(end->count, end->position, memory_order_release);
    atomic_thread_fence(memory_order_seq_cst);
}

/* Return how much of `wanted` bytes is moved next: what is possible now, in one chunk, up to the end of the window. */
static uint64_t next_part(const pipe_end *end, uint64_t wanted, uint64_t possible)
{
    uint64_t part = end->size - end->position % end->size;
    if (part > end->chunk)
        part = end->chunk;
    if (part > possible)
        part = possible;
    return part < wanted ? part : wanted;
}

/* Copy by vectors what is large. Past the caches: what is far larger than they are would only drive other things out of
 * them, and be read first. Else it is for memory that another processor has just used, where vectors are up to twice
 * as fast as x86's string instructions. */
static inline void copy(char *target, const char *source, uint64_t size, int past_caches)
{
#if defined(__SSE2__)
    if (past_caches || size >= VECTORS_FROM) {
        uint64_t head = -(uintptr_t)target & 15;
        if (head > size)
            head = size;
        memcpy(target, source, head);
        target += head, source += head, size -= head;
        while (size >= 64) {
            const __m128i *from = (const __m128i *)source;
            __m128i *to = (__m128i *)target;
            __m128i a = _mm_loadu_si128(from), b = _mm_loadu_si128(from + 1);
            __m128i c = _mm_loadu_si128(from + 2), d = _mm_loadu_si128(from + 3);
            if (past_caches) {
                _mm_stream_si128(to, a), _mm_stream_si128(to + 1, b);
                _mm_stream_si128(to + 2, c), _mm_stream_si128(to + 3, d);
            } else {
                _mm_store_si128(to, a), _mm_store_si128(to + 1, b);
                _mm_store_si128(to + 2, c), _mm_store_si128(to + 3, d);
            }
            target += 64, source += 64, size -= 64;
        }
        if (past_caches)
            _mm_sfence();
    }
#else
    (void)past_caches;
#endif
    memcpy(target, source, size);
}

void multiworld_copy(char *target, const char *source, uint64_t size)
{
    copy(target, source, size, 0);
}

/* Write up to `size` bytes. Return how many, when they are written, the reader is to be told, there was no room for
 * `spin_ns`, or all took `limit_ns`; NONSENSE if the reader's count can't be one. */
uint64_t multiworld_push(pipe_end *end, const char *source, uint64_t size, uint64_t spin_ns, uint64_t limit_ns)
{
    uint64_t moved = 0, began = now_ns();
    end->bell = 0;
    while (moved < size && !end->bell && now_ns() - began < limit_ns) {
        int64_t room = watch(end, end->position - end->size, spin_ns);
        if (room < 0 || room > (int64_t)end->size)
            return NONSENSE;
        if (room == 0)
            break;
        uint64_t part = next_part(end, size - moved, (uint64_t)room);
        copy(end->window + end->position % end->size, source + moved, part, 0);
        moved += part;
        end->position += part;
        publish(end);
        ring(end);
    }
    return moved;
}

/* Read up to `size` bytes, into nowhere if `target` is NULL. Return how many, when they are read, the writer is to be
 * told, nothing came for `spin_ns`, or all took `limit_ns`; NONSENSE if the writer's count can't be one. The writer is
 * told when half of the window is free, unless it is `not_yet` to be told. */
uint64_t multiworld_pull(pipe_end *end, char *target, uint64_t size, uint64_t spin_ns, uint64_t limit_ns,
                         int past_caches, int not_yet)
{
    uint64_t moved = 0, began = now_ns();
    end->bell = 0;
    while (moved < size && !end->bell && now_ns() - began < limit_ns) {
        int64_t there = watch(end, end->position, spin_ns);
        if (there < 0 || there > (int64_t)end->size)
            return NONSENSE;
        if (there == 0)
            break;
        uint64_t part = next_part(end, size - moved, (uint64_t)there);
        const char *source = end->window + end->position % end->size;
        if (target != 0 && past_caches)
            copy(target + moved, source, part, 1);
        else if (target != 0)
            copy(target + moved, source, part, 0);
        moved += part;
        end->position += part;
        publish(end);
        if (!not_yet && (uint64_t)there - part <= end->size / 2)
            ring(end);
    }
    return moved;
}

static void begin_rest(pipe_end *end)
{
    uint64_t rest = atomic_load_explicit(end->rest, memory_order_relaxed) | 1;
    atomic_store_explicit(end->rest, rest, memory_order_relaxed);
    atomic_thread_fence(memory_order_seq_cst);
    end->bell = 0;
}

/* Say in a word that its owner has read all it is going to: what was read there is not read after this. */
void multiworld_leave(uint64_t *word, uint64_t number)
{
    atomic_store_explicit((_Atomic uint64_t *)word, number, memory_order_release);
}

/* We look again. */
void multiworld_wake(pipe_end *end)
{
    uint64_t rest = atomic_load_explicit(end->rest, memory_order_relaxed);
    if (rest & 1)
        atomic_store_explicit(end->rest, rest + 1, memory_order_relaxed);
}

/* The writer rests, until it is told that half of the window is free; whether it may: else there is room now.
 * `early`: although there may be room, if there is something that the reader has still to read. */
int multiworld_rest_writing(pipe_end *end, int early)
{
    begin_rest(end);
    uint64_t used = end->position - atomic_load_explicit(end->their_count, memory_order_acquire);
    if (used > end->size || (early ? used == 0 : used <= end->size / 2)) {
        multiworld_wake(end);
        return 0;
    }
    ring(end);
    return 1;
}

/* The reader rests, until it is told that more has been written; whether it may: else there is something now.
 * `early`: although there may be something, if more than that is to be written up to the count of `end_of_payload`. */
int multiworld_rest_reading(pipe_end *end, int early, uint64_t end_of_payload)
{
    begin_rest(end);
    uint64_t written = atomic_load_explicit(end->their_count, memory_order_acquire);
    uint64_t there = written - end->position;
    int nonsense = there > end->size, more_comes = early && (int64_t)(end_of_payload - written) > 0;
    if (nonsense || (there > 0 && !more_comes)) {
        multiworld_wake(end);
        return 0;
    }
    ring(end);
    return 1;
}

/* How many slots the other end has written beyond ours, or taken beyond `behind` ours; NONSENSE if that can't be. */
uint64_t multiworld_beyond(const pipe_end *end, uint64_t behind)
{
    int64_t beyond = watch(end, end->position - behind, 0);
    return beyond < 0 || beyond > (int64_t)end->size ? NONSENSE : (uint64_t)beyond;
}

static int is_readable(int fd)
{
    struct pollfd socket = {.fd = fd, .events = POLLIN | POLLRDHUP};
    return poll(&socket, 1, 0) != 0;
}

/* Return whether their count is beyond ours, once it is or after `spin_ns`; or when there is something to read from a
 * socket, or there was an interruption since `seen` of them. Other threads may move this end meanwhile. */
int multiworld_look(const pipe_end *end, int fd, uint64_t spin_ns, uint64_t seen)
{
    uint64_t began = now_ns(), waited = 0;
    const volatile uint64_t *position = &end->position;
    for (unsigned looks = 0;; looks++) {
        for (int turn = 0; turn < 32; turn++) {
            if ((int64_t)(atomic_load_explicit(end->their_count, memory_order_acquire) - *position) > 0)
                return 1;
            pause_briefly();
        }
        if (waited >= spin_ns || atomic_load_explicit(&end->interruptions, memory_order_relaxed) != seen)
            return 0;
        if (looks % LOOKS_PER_POLL == 0 && is_readable(fd))
            return 0;
        if (waited > YIELD_AFTER_NS)
            sched_yield();
        waited = now_ns() - began;
    }
}

/* Look again and again, for `spin_ns` at most, whether any of so many descriptors has something to say; whether one has.
 * Who needs the processor meanwhile, gets it. */
int multiworld_look_at(struct pollfd *descriptors, uint64_t count, uint64_t spin_ns)
{
    uint64_t began = now_ns();
    while (poll(descriptors, count, 0) == 0) {
        uint64_t waited = now_ns() - began;
        if (waited >= spin_ns)
            return 0;
        if (waited > YIELD_AFTER_NS)
            sched_yield();
    }
    return 1;
}

/* Copy a payload into place and tell that one more slot is written; return whether the reader is to be told. */
int multiworld_put(pipe_end *end, char *target, const char *source, uint64_t size)
{
    copy(target, source, size, 0);
    end->position++;
    end->bell = 0;
    publish(end);
    ring(end);
    return end->bell != 0;
}

/* Count what was freed, and tell it to who looks; return whether who rests is to be told, if that is asked for. */
int multiworld_free(pipe_end *end, uint64_t count, int asks)
{
    end->position += count;
    end->bell = 0;
    if (asks) {
        publish(end);
        ring(end);
    } else {
        atomic_store_explicit(end->count, end->position, memory_order_release);
    }
    return end->bell != 0;
}

/* The reader rests anew, until it is told of the next slot; whether it may: else there is one now. */
int multiworld_rest(pipe_end *end)
{
    uint64_t rest = (atomic_load_explicit(end->rest, memory_order_relaxed) + 1) | 1;
    atomic_store_explicit(end->rest, rest, memory_order_relaxed);
    atomic_thread_fence(memory_order_seq_cst);
    if (atomic_load_explicit(end->their_count, memory_order_acquire) == end->position)
        return 1;
    atomic_store_explicit(end->rest, rest + 1, memory_order_relaxed);
    return 0;
}

/* Copy the payload of a slot, if there is a target, and tell that the slot was taken. Returns 0. */
int multiworld_take(pipe_end *end, char *target, const char *source, uint64_t size)
{
    if (target != 0)
        copy(target, source, size, 0);
    end->position++;
    atomic_store_explicit(end->count, end->position, memory_order_release);
    return 0;
}
