// Drives the page of a server in headless Chromium, over the DevTools protocol on a pipe:  node tests/page.js URL
// The page must show a user and its list, re-rank when an event is added and taken back, give reasons, show an unknown
// user popular items and nobody else's history, clip no row, fit 360 px without scrolling sideways, in light
// and dark, and log no error (a broken content policy would be one).
'use strict';
const { spawn } = require('child_process');
const fs = require('fs'), os = require('os'), path = require('path');
const url = process.argv[2], folder = fs.mkdtempSync(path.join(os.tmpdir(), 'page-'));
const browser = spawn('chromium', ['--headless=new', '--no-sandbox', '--disable-gpu', '--remote-debugging-pipe', '--user-data-dir=' + folder],
    { detached: true, stdio: ['ignore', 'ignore', 'ignore', 'pipe', 'pipe'] }); // a group: it has children
const waiting = new Map(), errors = [];
let last = 0, text = '';

function end(reason) {
    try {
        process.kill(-browser.pid, 'SIGKILL');
        fs.rmSync(folder, { recursive: true, force: true, maxRetries: 20, retryDelay: 100 });
    } catch (e) {
        console.error(e.message); // what is left behind says nothing about the page
    }
    console.log(reason || 'the page works');
    process.exit(reason ? 1 : 0);
}
process.on('SIGTERM', () => end('the test was ended'));
setTimeout(() => end('the page took longer than two minutes'), 120000);
browser.on('error', () => end('chromium does not start'));
browser.stdio[4].on('data', bytes => {
    text += bytes;
    for (let at; (at = text.indexOf('\0')) >= 0; text = text.slice(at + 1)) {
        const message = JSON.parse(text.slice(0, at));
        if (waiting.has(message.id)) waiting.get(message.id)(message.result || message);
        if (message.method === 'Runtime.exceptionThrown') errors.push(message.params.exceptionDetails.exception.description);
        if (message.method === 'Log.entryAdded' && message.params.entry.level === 'error' && !String(message.params.entry.url).includes('/v1/users/nobody')) errors.push(message.params.entry.text);
    }
});
const send = (method, params, sessionId) => new Promise(done => {
    waiting.set(++last, done);
    browser.stdio[3].write(JSON.stringify({ id: last, method, params, sessionId }) + '\0');
});

async function main() {
    const target = await send('Target.createTarget', { url: 'about:blank' });
    const session = (await send('Target.attachToTarget', { targetId: target.targetId, flatten: true })).sessionId;
    const ask = async code => (await send('Runtime.evaluate', { expression: code, returnByValue: true, awaitPromise: true }, session)).result.value;
    const until = async (what, code) => {
        for (let i = 0; i < 300; i++) {
            if (await ask(code)) return;
            await new Promise(r => setTimeout(r, 100));
        }
        end('waited in vain until ' + what + (errors.length ? ': ' + errors[0] : ''));
    };
    for (const domain of ['Page', 'Runtime', 'Log']) await send(domain + '.enable', {}, session);
    for (const [width, scheme] of [[1280, 'light'], [360, 'dark']]) {
        await send('Emulation.setDeviceMetricsOverride', { width, height: 800, deviceScaleFactor: 1, mobile: false }, session);
        await send('Emulation.setEmulatedMedia', { features: [{ name: 'prefers-color-scheme', value: scheme }] }, session);
        await send('Page.navigate', { url }, session);
        await until('there is a list', "document.querySelectorAll('#recs .rec').length === 10");
        await until('there are reasons', "document.getElementById('why').textContent.includes('left out')");
        await until('the map is drawn', "document.getElementById('k-user').textContent !== ''");
        const wrong = await ask(`(() => { // the axes: of length 1, at a right angle, and no single direction is wider than the first
            const [x, y] = map.axes, rows = map.items.map(i => normed(i[1]).map((a, k) => a - map.mean[k]));
            const spread = axis => rows.reduce((sum, r) => sum + inner(r, axis) ** 2, 0), widest = Math.max(...x.map((_, k) => spread(x.map((_, j) => +(j === k)))));
            const off = [inner(x, x) - 1, inner(y, y) - 1, inner(x, y), ...rows.map((r, i) => inner(r, x) - map.items[i].at[0]), ...rows.map((r, i) => inner(r, y) - map.items[i].at[1])];
            return off.some(a => !(Math.abs(a) < 1e-6)) || !(spread(x) >= spread(y) && spread(x) >= widest && spread(y) > 0);
        })()`);
        if (wrong !== false) end('the axes of the map are not those in which items differ most');
        await until('the server is watched', "document.querySelectorAll('#hist rect').length > 20");
        const list = "[...document.querySelectorAll('#recs .title')].map(t => t.textContent).join()";
        const before = await ask(list);
        await ask("document.getElementById('item').value = '12'; document.getElementById('addform').requestSubmit()");
        await until('an added event changes the list', `${list} !== ${JSON.stringify(before)} && document.querySelectorAll('#recs .rec').length === 10`);
        await ask("document.getElementById('undo').click()");
        await until('the list is as it was', `${list} === ${JSON.stringify(before)}`);
        await ask("document.getElementById('user').value = 'nobody-' + 'x'.repeat(80); document.getElementById('userform').requestSubmit()");
        await until('an unknown user has the popular items and no history', "document.getElementById('source').textContent === 'popular' && document.querySelectorAll('#recs .rec').length === 10 && document.querySelectorAll('#history .row').length === 0 && document.getElementById('state').textContent.startsWith('nobody-')");
        const clipped = await ask("[...document.querySelectorAll('#recs, #recs .rec, #state')].filter(e => e.scrollWidth > e.clientWidth).length");
        if (clipped) end(`at ${width} px ${clipped} rows are clipped`);
        const wide = await ask('document.documentElement.scrollWidth');
        if (wide > width) end(`at ${width} px the page is ${wide} px wide`);
        const back = await ask('getComputedStyle(document.body).backgroundColor');
        if (back !== (scheme === 'dark' ? 'rgb(18, 22, 28)' : 'rgb(246, 247, 249)')) end(`${scheme}: background ${back}`);
    }
    end(errors.length ? 'an error on the page: ' + errors[0] : '');
}
main();
