// Reports that the server computes when they are read.

const every = 60e3;

// remote returns a reader of a report: open reads it now, and again every minute while it is shown.
export function remote(path, visible, redraw) {
  const report = { data: null, failure: '', readAt: 0 };
  const read = async () => {
    try {
      const response = await fetch(path);
      if (!response.ok) throw new Error(await response.text());
      [report.data, report.failure, report.readAt] = [await response.json(), '', Date.now()];
    } catch (error) {
      report.failure = 'No answer: ' + error.message;
    }
    redraw();
  };
  setInterval(() => visible() && read(), every);
  report.open = read;
  return report;
}
