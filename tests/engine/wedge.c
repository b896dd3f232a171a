// Faults inside an unmodified llama-server (LD_PRELOAD): what happens when a decode does not come back.
//
// INFEROPS_FAULT_FILE names a file that is looked for before each decode. Its one line:
//   futex SECONDS   the decoding thread sleeps in a futex nobody wakes; then the decode goes on as if nothing had been
//   spin SECONDS    it burns its CPU for so long; then the decode goes on
//   abort           SIGABRT, as a failed assertion of the engine's
//   exit CODE       the process ends quietly with this code
//   slow MS         every decode takes so much longer, for as long as the file is there
// The file is removed when its fault begins (slow: never), so one file is one fault. Any other content is left alone.
// INFEROPS_LOAD_DELAY_S: the model takes so many seconds longer to load.
//
// The structures that llama.cpp passes by value grow from build to build; they are passed on as opaque bytes, larger than
// any of them: the callee reads the beginning, which is what it was given.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <linux/futex.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define VISIBLE __attribute__((visibility("default")))
#define FRAME __attribute__((noinline)) // so that a stack says which fault it is in

struct by_value {
  uint64_t words[32];
};

static double seconds_now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

static struct timespec span(double seconds) {
  struct timespec t = {(time_t)seconds, (long)((seconds - (double)(time_t)seconds) * 1e9)};
  return t;
}

FRAME void inferops_fault_futex(double seconds) {
  uint32_t word = 0;
  double end = seconds_now() + seconds;
  for (double left = seconds; left > 0; left = end - seconds_now()) {
    struct timespec t = span(left);
    syscall(SYS_futex, &word, FUTEX_WAIT_PRIVATE, 0, &t, NULL, 0);
  }
}

FRAME void inferops_fault_spin(double seconds) {
  double end = seconds_now() + seconds;
  while (seconds_now() < end)
    for (volatile int i = 0; i < 100000; i++) {
    }
}

static void pause_for(double seconds) {
  struct timespec t = span(seconds);
  while (nanosleep(&t, &t) != 0) {
  }
}

static void maybe_fault(void) {
  const char *path = getenv("INFEROPS_FAULT_FILE");
  FILE *file = path ? fopen(path, "re") : NULL;
  if (!file)
    return;
  char mode[16] = "";
  double amount = 0;
  int read = fscanf(file, "%15s %lf", mode, &amount);
  fclose(file);
  if (read == 2 && !strcmp(mode, "slow")) {
    pause_for(amount / 1000);
  } else if (read == 2 && !strcmp(mode, "futex")) {
    unlink(path);
    inferops_fault_futex(amount);
  } else if (read == 2 && !strcmp(mode, "spin")) {
    unlink(path);
    inferops_fault_spin(amount);
  } else if (read == 2 && !strcmp(mode, "exit")) {
    unlink(path);
    _exit((int)amount);
  } else if (read >= 1 && !strcmp(mode, "abort")) {
    unlink(path);
    abort();
  }
}

static void *next(const char *name) {
  void *symbol = dlsym(RTLD_NEXT, name);
  if (!symbol) {
    fprintf(stderr, "wedge.c: this llama.cpp has no %s\n", name);
    abort();
  }
  return symbol;
}

VISIBLE int32_t llama_decode(void *context, struct by_value batch) {
  static int32_t (*real)(void *, struct by_value);
  if (!real)
    real = next("llama_decode");
  maybe_fault();
  return real(context, batch);
}

// What the server calls instead in builds from about b11434 on.
VISIBLE int32_t llama_process(void *context, int type, void *batch) {
  static int32_t (*real)(void *, int, void *);
  if (!real)
    real = next("llama_process");
  maybe_fault();
  return real(context, type, batch);
}

VISIBLE void *llama_model_load_from_file(const char *path, struct by_value params) {
  void *(*real)(const char *, struct by_value) = next("llama_model_load_from_file");
  const char *delay = getenv("INFEROPS_LOAD_DELAY_S");
  if (delay)
    pause_for(atof(delay));
  return real(path, params);
}
