use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::time::Duration;

use super::crowd::ALONE;
use super::region::SPIN;
use super::*;

#[test]
fn every_task_runs_once() {
    for threads in 1..=4 {
        let pool = Pool::new(threads);
        assert_eq!(pool.threads(), threads);
        for tasks in [0, 1, 2, 3, 7, 64, 1000] {
            let counts: Vec<AtomicU32> = (0..tasks).map(|_| AtomicU32::new(0)).collect();
            pool.run(tasks, |i| {
                counts[i].fetch_add(1, Ordering::Relaxed);
            });
            assert!(counts.iter().all(|c| c.load(Ordering::Relaxed) == 1), "{threads} threads, {tasks} tasks");
        }
    }
}

#[test]
fn many_short_regions_in_a_row_lose_no_task() {
    let pool = Pool::new(3);
    let sum = AtomicUsize::new(0);
    for _ in 0..20_000 {
        pool.run(5, |i| {
            sum.fetch_add(i, Ordering::Relaxed);
        });
    }
    assert_eq!(sum.into_inner(), 200_000);
}

#[test]
fn workers_that_parked_work_again() {
    let pool = Pool::new(2);
    for _ in 0..20 {
        std::thread::sleep(3 * SPIN);
        // A region that was held up by other load would be followed by some that run alone.
        pool.crowd.alone_until.store(0, Ordering::Relaxed);
        meet(&pool, || {});
    }
}

#[test]
fn an_owner_that_parked_is_woken_by_the_last_worker() {
    let pool = Pool::new(2);
    let started = AtomicUsize::new(0);
    let done = AtomicUsize::new(0);
    let owner = std::thread::current().id();
    pool.run(2, |_| {
        started.fetch_add(1, Ordering::SeqCst);
        while started.load(Ordering::SeqCst) < 2 {
            std::thread::yield_now();
        }
        if std::thread::current().id() != owner {
            std::thread::sleep(10 * SPIN);
        }
        done.fetch_add(1, Ordering::SeqCst);
    });
    assert_eq!(done.into_inner(), 2);
}

/// Runs a region that ends only if every thread comes, and then does something.
fn meet(pool: &Pool, then: impl Fn() + Sync) {
    let here = AtomicUsize::new(0);
    pool.run(pool.threads(), |_| {
        here.fetch_add(1, Ordering::SeqCst);
        while here.load(Ordering::SeqCst) < pool.threads() {
            std::thread::yield_now();
        }
        then();
    });
}

#[test]
fn a_worker_that_holds_a_region_up_is_left_out_for_a_while() {
    let pool = Pool::new(2);
    let owner = std::thread::current().id();
    meet(&pool, || {
        if std::thread::current().id() != owner {
            std::thread::sleep(Duration::from_millis(30));
        }
    });
    for i in 0..64 {
        pool.run(4, |_| assert_eq!(std::thread::current().id(), owner, "region {i}"));
    }
    std::thread::sleep(ALONE * Duration::from_millis(60));
    // Ends only if the worker comes again.
    meet(&pool, || {});
}

#[test]
fn nested_and_concurrent_regions_finish() {
    let pool = Pool::new(3);
    let sum = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..200 {
                    pool.run(4, |_| {
                        pool.run(3, |i| {
                            sum.fetch_add(i, Ordering::Relaxed);
                        });
                    });
                }
            });
        }
    });
    assert_eq!(sum.into_inner(), 4 * 200 * 4 * 3);
}

#[test]
fn a_panic_in_a_task_reaches_the_caller_and_leaves_the_pool_usable() {
    let pool = Pool::new(2);
    for bad in 0..8 {
        let outcome = catch_unwind(AssertUnwindSafe(|| pool.run(8, |i| assert_ne!(i, bad))));
        assert!(outcome.is_err(), "task {bad}");
        let count = AtomicUsize::new(0);
        pool.run(8, |_| {
            count.fetch_add(1, Ordering::Relaxed);
        });
        assert_eq!(count.into_inner(), 8);
    }
}

#[test]
fn chunks_cover_the_output_once() {
    let pool = Pool::new(2);
    for (len, chunk) in [(0, 4), (1, 4), (4, 4), (5, 4), (103, 10), (7, 0)] {
        let mut out = vec![0.0; len];
        pool.run_on_chunks(&mut out, chunk, |i, part| {
            for (j, x) in part.iter_mut().enumerate() {
                *x += (i * chunk.max(1) + j) as f32 + 1.0;
            }
        });
        let expected: Vec<f32> = (0..len).map(|i| i as f32 + 1.0).collect();
        assert_eq!(out, expected, "{len} by {chunk}");
    }
}

#[test]
fn slabs_cover_the_matrix_once() {
    let pool = Pool::new(2);
    for (rows, width, slab) in [(0, 3, 2), (3, 0, 2), (1, 1, 1), (3, 7, 2), (5, 64, 16), (4, 5, 9)] {
        let mut out = vec![0.0; rows * width];
        pool.run_on_columns(&mut out, width, slab, |mut slab| {
            assert_eq!(slab.rows(), rows);
            let columns = slab.columns();
            for r in 0..rows {
                for (x, column) in slab.row(r).iter_mut().zip(columns.clone()) {
                    *x += (r * width + column) as f32 + 1.0;
                }
            }
        });
        let expected: Vec<f32> = (0..rows * width).map(|i| i as f32 + 1.0).collect();
        assert_eq!(out, expected, "{rows} x {width} by {slab}");
    }
}
