// What the page does beyond its tables: sorting, curves, the time line of a step. All of it from the
// data that the page carries; nothing is fetched. Text is set as text, never as markup.
'use strict';
(() => {
  const data = JSON.parse(document.getElementById('data').textContent);
  const byId = (id) => document.getElementById(id);
  const make = (name, attributes = {}, text) => {
    const svg = ['svg', 'g', 'rect', 'text', 'line', 'path', 'title'].includes(name);
    const node = svg ? document.createElementNS('http://www.w3.org/2000/svg', name)
                     : document.createElement(name);
    for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
    if (text !== undefined) node.textContent = text;
    return node;
  };
  const us = (ns) => ns === null || ns === undefined ? '-'
      : (ns / 1000).toFixed(Math.abs(ns) < 99995 ? 2 : 1);

  // Tables: a click on a head sorts by its column; what is no number goes last.
  const number = (text) => {
    const value = parseFloat(text.replace('%', ''));
    return Number.isNaN(value) ? null : value;
  };
  const sortBy = (table, head, column) => {
    const down = head.getAttribute('aria-sort') === 'ascending';
    for (const other of table.querySelectorAll('th[aria-sort]')) other.removeAttribute('aria-sort');
    head.setAttribute('aria-sort', down ? 'descending' : 'ascending');
    const rows = [...table.tBodies[0].rows].map((row) => {
      const text = row.cells[column].textContent.trim();
      return {row, text, value: number(text)};
    });
    const names = rows.some((r) => r.value === null && r.text !== '-');
    rows.sort((a, b) => {
      if (names) return (down ? -1 : 1) * a.text.localeCompare(b.text, 'en', {numeric: true});
      if (a.value === null || b.value === null) return (a.value === null) - (b.value === null);
      return (down ? -1 : 1) * (a.value - b.value);
    });
    table.tBodies[0].append(...rows.map((r) => r.row));
  };
  for (const table of document.querySelectorAll('table.sortable')) {
    [...table.tHead.rows[table.tHead.rows.length - 1].cells].forEach((head, column) => {
      const button = make('button', {type: 'button'}, head.textContent);
      head.textContent = '';
      head.append(button);
      button.addEventListener('click', () => sortBy(table, head, column));
    });
  }

  // Curves.
  const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const points = ['circle', 'triangle', 'rect', 'crossRot', 'star', 'rectRot', 'cross', 'dash'];
  const dashes = [[], [7, 3], [2, 3], [9, 3, 2, 3]];
  const charts = [];
  const hasCharts = typeof Chart !== 'undefined';
  const theme = (chart) => {
    const ink = css('--ink'), line = css('--line');
    for (const scale of Object.values(chart.options.scales)) {
      scale.grid.color = line;
      scale.ticks.color = ink;
      scale.title.color = ink;
    }
    chart.options.plugins.legend.labels.color = ink;
    chart.data.datasets.forEach((set, i) => {
      set.borderColor = css('--c' + i % 8);
      set.backgroundColor = css('--c' + i % 8);
    });
    chart.update();
  };
  const axis = (title, more = {}) => ({title: {display: true, text: title}, grid: {}, ticks: {}, ...more});
  const timeTick = (value) => {
    const power = Math.log10(value);
    if (Math.abs(power - Math.round(power)) > 1e-6) return '';
    return value >= 1000 ? value / 1000 + ' ms' : value >= 1 ? value + ' us' : Math.round(value * 1000) + ' ns';
  };

  const allCases = data.runs.flatMap((run) => run.cases.map((c) => ({run, c})));
  const label = ({run, c}) => data.runs.length > 1 ? run.label + ': ' + c.name : c.name;
  let distribution = null;
  const curves = () => {
    const metric = byId('curve-metric').value;
    const of = byId('curve-of').value;
    if (of === 'paths') {
      return allCases.map((each) => ({name: label(each), ...each.c.curves[metric].all}));
    }
    const each = allCases[Number(of)];
    return each.c.curves[metric].ranks.map((r) => ({name: 'rank ' + r.rank, ...r}));
  };
  const drawCurves = () => {
    const shown = curves().filter((c) => c.points.length > 0);
    const body = byId('curve-table').tBodies[0];
    body.replaceChildren(...shown.map((c) => {
      const row = make('tr');
      row.append(make('td', {class: 'name'}, c.name), make('td', {}, String(c.n)));
      for (const key of ['p50', 'p90', 'p99', 'p999', 'max']) row.append(make('td', {}, us(c[key])));
      return row;
    }));
    byId('curve-empty').hidden = shown.length > 0;
    byId('curve-chart').hidden = !hasCharts || shown.length === 0;
    if (!hasCharts || shown.length === 0) return;
    const sets = shown.map((c, i) => ({
      label: c.name, showLine: true, stepped: 'after', borderWidth: 2, fill: false,
      // Colours come round after eight: shape and dashes then differ.
      pointStyle: points[(i + Math.floor(i / 8)) % points.length],
      borderDash: dashes[(Math.floor(i / 2) + Math.floor(i / 8)) % dashes.length],
      pointRadius: (context) => context.dataIndex % 12 === 6 ? 4 : 0, pointHitRadius: 6,
      data: [[c.points[0][0], 0], ...c.points].map(([value, count]) =>
          ({x: Math.max(value, 1) / 1000, y: 100 * count / c.n, ns: value})),
    }));
    if (distribution) {
      distribution.data.datasets = sets;
      theme(distribution);
      return;
    }
    distribution = new Chart(byId('curve-canvas'), {
      type: 'scatter', data: {datasets: sets},
      options: {
        animation: false, responsive: true, maintainAspectRatio: false,
        scales: {
          x: axis('time, log scale', {type: 'logarithmic', ticks: {callback: timeTick, autoSkip: false, maxRotation: 0}}),
          y: axis('share of samples at or below, %', {min: 0, max: 100}),
        },
        plugins: {
          legend: {labels: {usePointStyle: true}},
          tooltip: {callbacks: {label: (item) =>
              item.dataset.label + ': ' + item.parsed.y.toFixed(2) + '% at or below ' + us(item.raw.ns) + ' us'}},
        },
      },
    });
    charts.push(distribution);
    theme(distribution);
  };
  if (byId('curve-metric')) {
    for (const id of ['curve-metric', 'curve-of']) byId(id).addEventListener('change', drawCurves);
    drawCurves();
  }

  // Shares of the lateness by stage.
  const stages = byId('stage-canvas');
  if (stages) {
    const cases = allCases.filter(({c}) => c.stages.some((s) => s.share !== null));
    byId('stage-chart').hidden = !hasCharts || cases.length === 0;
    if (hasCharts && cases.length > 0) {
      byId('stage-chart').style.height = 7 + 1.6 * cases.length + 'rem';
      const chart = new Chart(stages, {
        type: 'bar',
        data: {
          labels: cases.map(label),
          datasets: cases[0].c.stages.map((stage, i) => ({
            label: stage.stage,
            data: cases.map(({c}) => c.stages[i].share === null ? null : 100 * c.stages[i].share),
          })),
        },
        options: {
          animation: false, responsive: true, maintainAspectRatio: false, indexAxis: 'y',
          scales: {x: axis('share of the lateness, %', {stacked: true}), y: axis('', {stacked: true, ticks: {autoSkip: false}})},
          plugins: {legend: {labels: {}}, tooltip: {callbacks: {label: (item) =>
              item.dataset.label + ': ' + item.parsed.x.toFixed(1) + '%'}}},
        },
      });
      charts.push(chart);
      theme(chart);
    }
  }
  const retheme = () => charts.forEach(theme);
  for (const query of ['(prefers-color-scheme: dark)', 'print']) {
    matchMedia(query).addEventListener('change', retheme);
  }

  // The time line of a step. A row of a rank: times relative to the step's base, ns; null: not taken.
  const F = {coupling: 0, accept: 1, inputs: 2, inputsEnd: 3, dispatch: 4, dispatchEnd: 5, launch: 6,
             launchEnd: 7, gpu: 8, gpuEnd: 9, own: 10, seen: 11, end: 12, injected: 13};
  const spans = [
    ['wait', 'wait for accept', 'coupling', 'accept', 'host'],
    ['inputs', 'inputs', 'inputs', 'inputsEnd', 'host'],
    ['dispatch', 'dispatch', 'dispatch', 'dispatchEnd', 'host'],
    ['launch', 'graph launch', 'launch', 'launchEnd', 'host'],
    ['graph', 'graph on the GPU', 'gpu', 'gpuEnd', 'gpu'],
    ['spin', 'wait for peers', 'own', 'seen', 'gpu'],
    ['transfer', 'transfer', 'seen', 'end', 'gpu'],
  ];
  const between = (row, a, b) => row[F[a]] === null || row[F[b]] === null ? null : row[F[b]] - row[F[a]];
  const drawStep = (step) => {
    const left = 92, width = 1000, lane = 16, gap = 8;
    const ranks = step.ranks;
    // Unless all of it is asked for: from the first accept to the end of the last first all-reduce.
    const whole = byId('line-whole').checked;
    let low = Infinity, high = -Infinity;
    for (const rebuild of step.rebuilds) {
      for (const row of rebuild.rows) {
        if (!row) continue;
        const times = whole ? row.slice(0, F.injected)
            : [...row.slice(F.accept, F.gpu), row[F.own], row[F.seen], row[F.end]];
        for (const t of times.filter((time) => time !== null)) {
          low = Math.min(low, t);
          high = Math.max(high, t);
        }
      }
    }
    const margin = 0.04 * (high - low);
    low -= margin;
    high += margin;
    const span = Math.max(high - low, 1);
    const x = (t) => left + (t - low) / span * (width - left - 12);
    const height = 26 + ranks.length * (2 * lane + gap);
    const svg = make('svg', {viewBox: `0 0 ${width} ${height}`, role: 'img',
      'aria-label': 'Time line of the step; the table below has its figures'});
    const unit = 10 ** Math.floor(Math.log10(span / 5));
    const tick = [1, 2, 5, 10].map((m) => m * unit).find((t) => span / t <= 8) || unit * 10;
    for (let t = Math.ceil(low / tick) * tick; t <= high; t += tick) {
      svg.append(make('line', {x1: x(t), x2: x(t), y1: 18, y2: height, class: 'grid'}),
                 make('text', {x: x(t), y: 12, 'text-anchor': 'middle', class: 'soft'}, us(t) + ' us'));
    }
    ranks.forEach((rank, i) => {
      const top = 24 + i * (2 * lane + gap);
      svg.append(make('text', {x: 4, y: top + 12}, 'rank ' + rank + ' host'),
                 make('text', {x: 4, y: top + lane + 12}, (step.aligned ? '' : '~') + 'GPU'),
                 make('line', {x1: left, x2: width, y1: top + 2 * lane + 2, y2: top + 2 * lane + 2, class: 'lane'}));
      step.rebuilds.forEach((rebuild, order) => {
        const row = rebuild.rows[i];
        if (!row) return;
        for (const [kind, name, from, to, where] of spans) {
          if (kind === 'wait' && order > 0) continue;
          const length = between(row, from, to);
          if (length === null || length < 0) continue;
          const begin = Math.max(row[F[from]], low), end = Math.min(row[F[to]], high);
          if (begin > high || end < low) continue;
          const y = top + (where === 'gpu' ? lane : 0) + (kind === 'spin' || kind === 'transfer' ? 3 : 0);
          const tall = lane - 2 - (kind === 'spin' || kind === 'transfer' ? 6 : 0);
          const bar = make('rect', {x: x(begin), y, width: Math.max(x(end) - x(begin), 1),
            height: tall, class: 's-' + kind + (where === 'gpu' && !step.aligned && kind === 'graph' ? ' unaligned' : '')});
          bar.append(make('title', {}, `rank ${rank}, ${rebuild.phase}: ${name} ${us(length)} us`));
          svg.append(bar);
        }
        const bound = step.bound_ns;
        if (step.aligned && bound && row[F.gpu] !== null) {
          const y = top + lane + lane / 2 - 1;
          const a = x(row[F.gpu] - bound), b = x(row[F.gpu] + bound);
          svg.append(make('path', {class: 'doubt', d: `M${a} ${y - 4}V${y + 4}M${a} ${y}H${b}M${b} ${y - 4}V${y + 4}`}));
        }
      });
    });
    byId('line').replaceChildren(svg);

    const body = byId('line-table').tBodies[0];
    body.replaceChildren();
    step.rebuilds.forEach((rebuild, order) => ranks.forEach((rank, i) => {
      const row = rebuild.rows[i];
      if (!row) return;
      const line = make('tr');
      line.append(make('td', {class: 'name'}, rebuild.phase), make('td', {}, String(rank)),
                  make('td', {}, us(order === 0 ? row[F.accept] : null)));
      for (const [kind, , from, to] of spans) {
        line.append(make('td', {}, us(kind === 'wait' && order > 0 ? null : between(row, from, to))));
      }
      line.append(make('td', {}, us(row[F.launch])), make('td', {}, us(row[F.injected] || null)));
      body.append(line);
    }));
    byId('line-clock').textContent = step.clock;
  };
  const stepName = (step) => `launch ${step.id[0]}, repetition ${step.id[1]}, step ${step.id[2]} (${us(step.cost)} us)`;
  let shownStep = null;
  const showStep = (of, index) => {
    shownStep = [of, index];
    const step = allCases[of].c.steps[index];
    byId('line-title').textContent = label(allCases[of]) + ': ' + stepName(step);
    byId('line-select').value = of + ':' + index;
    for (const button of byId('line-block').children) {
      button.setAttribute('aria-pressed', String(button.dataset.step === of + ':' + index));
    }
    drawStep(step);
  };
  const openBlock = (button) => {
    const of = Number(button.dataset.case);
    const steps = button.dataset.steps.split(' ').filter((s) => s !== '').map(Number);
    byId('line-block').replaceChildren(...steps.map((index) => {
      const each = make('button', {type: 'button', class: 'action', 'data-step': of + ':' + index},
                        stepName(allCases[of].c.steps[index]));
      each.addEventListener('click', () => showStep(of, index));
      return each;
    }));
    byId('line-from').textContent = button.getAttribute('aria-label');
    showStep(of, steps[0]);
    byId('line-title').focus();
    byId('timeline').scrollIntoView();
  };
  for (const button of document.querySelectorAll('button[data-steps]')) {
    button.addEventListener('click', () => openBlock(button));
  }
  // Arrow keys walk over the cells of a heat map.
  for (const table of document.querySelectorAll('table.heat')) {
    table.addEventListener('keydown', (event) => {
      const move = {ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0]}[event.key];
      const cell = event.target.closest('td');
      if (!move || !cell) return;
      const row = table.rows[cell.parentElement.rowIndex + move[0]];
      const next = row && row.cells[cell.cellIndex + move[1]];
      const button = next && next.querySelector('button');
      if (!button) return;
      event.preventDefault();
      button.focus();
    });
  }
  const select = byId('line-select');
  if (select) {
    const steps = allCases.flatMap((each, of) => each.c.steps.map((step, index) => ({each, of, index, step})));
    steps.sort((a, b) => b.step.cost - a.step.cost);
    for (const {each, of, index, step} of steps) {
      select.append(make('option', {value: of + ':' + index}, label(each) + ': ' + stepName(step)));
    }
    byId('line-whole').addEventListener('change', () => shownStep && showStep(...shownStep));
    select.addEventListener('change', () => showStep(...select.value.split(':').map(Number)));
    if (steps.length > 0) showStep(steps[0].of, steps[0].index);
  }
  document.documentElement.dataset.ready = 'true';
})();
