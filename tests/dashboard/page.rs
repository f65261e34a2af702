use serde_json::{Value, json};

use crate::admin::Admin;
use crate::browser::Browser;
use crate::caller::{call, chat};
use crate::scene::Scene;

/// The worker's colour is painted in the middle of its cell: `[painted cells, cells in the colour of the dead]`.
const CELLS: &str = "(() => {
    const grid = document.getElementById('grid');
    const pen = grid.getContext('2d');
    const scale = grid.width / grid.clientWidth;
    const dot = document.createElement('canvas').getContext('2d');
    const colour = (text) => {
        dot.fillStyle = text;
        dot.fillRect(0, 0, 1, 1);
        return [...dot.getImageData(0, 0, 1, 1).data].join();
    };
    const dead = colour(ink('--dead'));
    const at = (cell) => {
        // Off the middle, where the dead are crossed out.
        const [x, y] = [cell.x + layout.size / 2, cell.y + layout.size / 8];
        return [...pen.getImageData(x * scale, y * scale, 1, 1).data].join();
    };
    const seen = layout.cells.map(at);
    return [seen.filter((pixel) => !pixel.endsWith(',0')).length, seen.filter((pixel) => pixel === dead).length];
})()";

fn journal_has(browser: &mut Browser, text: &str) -> f64 {
    let entry =
        format!("[...document.querySelectorAll('#journal li')].find((li) => li.textContent.includes({text:?}))");
    browser.until(&format!("{entry}?.dataset.lagMs"));
    let lag = browser.value(&format!("Number({entry}.dataset.lagMs)"));
    lag.as_f64().unwrap()
}

#[test]
#[ignore = "needs Chromium"]
fn a_page_shows_512_workers_and_a_kill_within_a_second() {
    let admin = Admin::start(&["--num-workers", "512", "--stagger-delay", "0"]);
    let mut browser = Browser::start(1400, 1000);
    browser.open(&admin.url);
    browser.until("document.getElementById('grid').dataset.workers === '512'");
    browser.until("document.body.dataset.samples > 1 && tiles.get('ready').textContent === '512 / 512'");
    assert_eq!(browser.value(CELLS), json!([512, 0]));

    let outcome = call(&admin.scene.address(3), "a", &chat(&[7; 64], 12))
        .unwrap()
        .finish()
        .unwrap();
    assert!(outcome.complete);
    browser.until("document.body.dataset.samples && points.some((point) => point.tokens > 0)");
    browser.until("points.some((point) => point.ttft50 > 0)");
    assert_eq!(browser.value("fleet.sample.columns.tokens_total[3]"), 12);

    let order = json!({"command": "crash", "path": "w37"});
    assert_eq!(admin.post("/v1/commands", &order).0, 200);
    let lag_ms = journal_has(&mut browser, "w37 is dead");
    assert!(
        lag_ms < 1000.0,
        "shown {lag_ms} ms after it happened, by the fleet's clock"
    );
    browser.until("document.getElementById('grid').dataset.dead === '1'");
    assert_eq!(browser.value(CELLS), json!([512, 1]));
    assert_eq!(browser.value("health(37)"), "dead");
    browser.picture("fleet");
    assert!(
        browser.value("PLOTS[0].canvas.dataset.marks > 0").as_bool().unwrap(),
        "the plots mark it"
    );

    // A command to many names each of them, without a place to break the line.
    browser.value("document.getElementById('whom').value = '25%'");
    browser.value("document.getElementById('factor').value = ''");
    browser.click("[data-command=slow]");
    browser.until("document.getElementById('notice').textContent === 'Slow needs a factor above 1'");
    browser.value("document.getElementById('factor').value = '3'");
    browser.click("[data-command=slow]");
    browser.until("document.getElementById('confirm').open");
    browser.click("#confirm-yes");
    admin
        .scene
        .until("it is done", |_| admin.get("/v1/faults").1[0]["phase"] == "open");
    let struck = admin.get("/v1/faults").1[0]["workers"].clone();
    assert_eq!(struck.as_array().unwrap().len(), 128);
    browser.value(&format!("choose({})", struck[0]));
    browser.until("document.getElementById('worker').textContent.includes('Faults in force')");
    let width = browser.value("document.documentElement.scrollWidth - document.documentElement.clientWidth");
    assert_eq!(width, 0, "the page does not scroll sideways");
    assert_eq!(browser.complaints(), Vec::<Value>::new());
}

#[test]
#[ignore = "needs Chromium"]
fn a_worker_opens_by_keyboard_and_its_buttons_ask_before_they_do_anything() {
    let admin = Admin::start(&["--num-workers", "4"]);
    let state = |worker: usize| admin.get(&format!("/v1/actors/w{worker}")).1["state"].clone();
    let mut browser = Browser::start(1400, 1000);
    browser.open(&admin.url);
    browser.until("document.getElementById('grid').dataset.workers === '4' && fleet.sample");
    browser.value("document.getElementById('grid').focus()");
    browser.press("ArrowRight");
    assert!(
        browser
            .value("document.getElementById('cursor').textContent")
            .as_str()
            .unwrap()
            .starts_with("w1 ")
    );
    browser.press("Enter");
    browser.until("document.getElementById('worker').dataset.path === 'w1'");
    let panel = browser.value("document.getElementById('worker').textContent");
    for part in ["Supervisor", "5 restarts in 60 s", "w1/r0", "Queue (0)", "engine=vllm"] {
        assert!(panel.as_str().unwrap().contains(part), "{part}: {panel}");
    }

    let before = admin.get("/v1/journal").1["last"].clone();
    browser.click("[data-command=kill]");
    browser.until("document.getElementById('confirm').open");
    assert_eq!(
        browser.value("document.getElementById('confirm-title').textContent"),
        "Kill w1?"
    );
    browser.press("Escape");
    browser.until("!document.getElementById('confirm').open");
    browser.click("[data-command=kill]");
    browser.until("document.getElementById('confirm').open");
    browser.click("#confirm-no");
    browser.until("!document.getElementById('confirm').open");
    assert_eq!(
        (admin.get("/v1/journal").1["last"].clone(), state(1)),
        (before, json!("ready"))
    );

    browser.click("[data-command=kill]");
    browser.until("document.getElementById('confirm').open");
    browser.click("#confirm-yes");
    journal_has(&mut browser, "w1 is dead");
    assert_eq!(state(1), "dead");
    browser.click("[data-command=heal]");
    browser.until("document.getElementById('confirm').open");
    browser.click("#confirm-yes");
    admin.scene.until("w1 is back", |_| state(1) == "ready");
    browser.until("health(1) === 'ready'");

    browser.value("document.getElementById('whom').value = 'w0,w2'");
    browser.click("[data-command=slow]");
    browser.until("document.getElementById('confirm').open");
    assert_eq!(
        browser.value("document.getElementById('confirm-title').textContent"),
        "Slow 2 workers?"
    );
    browser.click("#confirm-yes");
    browser.until("document.getElementById('faults').textContent.includes('slow factor=4')");
    browser.until("fleet.sample.columns.faults[2]");
    assert_eq!(admin.get("/v1/faults").1[0]["workers"], json!([0, 2]));
    browser.click("#faults button");
    browser.until("document.getElementById('confirm').open");
    browser.click("#confirm-yes");
    browser.until("document.getElementById('faults').textContent === 'none'");
    assert_eq!(admin.get("/v1/faults").1, json!([]));
    assert_eq!(browser.complaints(), Vec::<Value>::new());
}

#[test]
#[ignore = "needs Chromium"]
fn a_budget_that_is_spent_is_told_in_words() {
    let admin = Admin::start(&["--num-workers", "2"]);
    let mut browser = Browser::start(1200, 900);
    browser.open(&admin.url);
    browser.until("document.getElementById('grid').dataset.workers === '2' && fleet.sample");
    let order = json!({"command": "panic", "path": "w1/r0"});
    admin.scene.until("the budget is spent", |_| {
        admin.post("/v1/commands", &order);
        let (_, journal) = admin.get("/v1/journal");
        let mut entries = journal["entries"].as_array().unwrap().iter();
        entries.any(|entry| entry["event"] == "gave_up")
    });
    journal_has(
        &mut browser,
        "w1 dies: the budget of w1/r0, 5 restarts in 60 s, is spent",
    );
    assert_eq!(browser.complaints(), Vec::<Value>::new());
}

#[test]
#[ignore = "needs Chromium"]
fn a_cell_opens_by_click_with_its_queue_and_the_shape_of_its_cache() {
    let admin = Admin::start(&["--num-workers", "9"]);
    let address = admin.scene.address(5);
    let outcome = call(&address, "done", &chat(&[7; 64], 4)).unwrap().finish().unwrap();
    assert!(outcome.complete);
    admin.fault("w5 hang");
    let _waits = call(&address, "the-one-that-waits", &chat(&[8; 16], 4)).unwrap();
    let mut browser = Browser::start(1400, 1000);
    browser.open(&admin.url);
    browser.until("document.getElementById('grid').dataset.drawMs && layout.cells.length === 9");
    let place = browser.value(
        "(() => {
            const box = document.getElementById('grid').getBoundingClientRect();
            const half = layout.size / 2;
            return [box.x + layout.cells[5].x + half, box.y + layout.cells[5].y + half];
        })()",
    );
    browser.click_at(place[0].as_f64().unwrap(), place[1].as_f64().unwrap());
    browser.until("document.getElementById('worker').dataset.path === 'w5'");
    browser.until("document.getElementById('worker').textContent.includes('Queue (1)')");
    browser.until("health(5) === 'hung'");
    browser.until("document.getElementById('worker').textContent.includes('hang')");
    browser.picture("worker");
    browser.click("#worker td button");
    browser.until("document.getElementById('confirm').open");
    let why = browser.value("document.getElementById('confirm-text').textContent");
    assert!(why.as_str().unwrap().contains("w5/r0"), "{why}");
    browser.click("#confirm-no");
    browser.value("document.getElementById('whom').value");
    admin.delete("/v1/faults");
    browser.until("document.getElementById('worker').textContent.includes('blocks known by hash')");
    assert_eq!(browser.complaints(), Vec::<Value>::new());
}

#[test]
#[ignore = "needs Chromium"]
fn the_page_asks_for_a_token_once_and_holds_nothing_without_it() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("fleet.toml");
    std::fs::write(&file, "admin_token = \"correct-horse\"\n").unwrap();
    let admin = Admin::start(&["--num-workers", "3", "--config", file.to_str().unwrap()]);
    assert_eq!(admin.get("/v1/fleet").0, 401);
    let (status, page) = admin.get("/");
    assert_eq!(status, 200);
    assert!(
        !page
            .as_str()
            .unwrap()
            .contains(&admin.scene.worker(0).instance_id.to_string())
    );
    let mut browser = Browser::start(1200, 900);
    browser.open(&admin.url);
    for (token, right) in [("battery", false), ("correct-horse", true)] {
        browser.until("document.getElementById('token').open");
        assert_eq!(
            browser.value("document.getElementById('grid').dataset.workers ?? 'none'"),
            "none"
        );
        browser.value("document.getElementById('token-text').focus()");
        browser.write(token);
        browser.press("Enter");
        if right {
            browser.until("document.getElementById('grid').dataset.workers === '3'");
        }
    }
    browser.open(&format!("{}/?again", admin.url));
    browser.until("document.getElementById('grid').dataset.workers === '3'");
    assert_eq!(browser.value("document.getElementById('token').open"), false);
}

#[test]
#[ignore = "needs Chromium"]
fn a_fleet_that_is_gone_is_told_and_one_that_returns_is_shown_afresh() {
    let scene = Scene::start(&["--num-workers", "5", "--admin-port", "0"]);
    let address = scene.cluster.facts().admin.unwrap();
    let mut browser = Browser::start(1200, 900);
    browser.open(&format!("http://{address}"));
    browser.until("document.getElementById('grid').dataset.workers === '5' && points.length > 1");
    scene.cluster.stop();
    browser.until("document.body.className === 'gone'");
    let notice = browser.value("document.getElementById('notice').textContent");
    assert!(notice.as_str().unwrap().contains("cannot be reached"), "{notice}");
    assert_eq!(browser.value("document.getElementById('notice').hidden"), false);
    assert_eq!(
        browser.value("document.getElementById('grid').dataset.workers"),
        "5",
        "the last that was seen"
    );
    let port = address.port().to_string();
    let _back = Scene::start(&["--num-workers", "2", "--admin-port", &port]);
    browser.until("document.body.className === 'live' && document.getElementById('grid').dataset.workers === '2'");
    assert_eq!(browser.value("document.getElementById('notice').hidden"), true);
}
