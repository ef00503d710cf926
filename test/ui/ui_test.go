// Package ui tests the console in Chromium, with a fleet of 1,000 Macs: by role and name of the
// elements, with the keyboard, in two widths and two colour schemes.
package ui

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"
	"github.com/stretchr/testify/require"

	kubefake "k8s.io/client-go/kubernetes/fake"
	"k8s.io/utils/clock"

	rackv1alpha1 "macrack.io/macrack/pkg/apis/rack/v1alpha1"
	"macrack.io/macrack/pkg/generated/clientset/versioned"
	"macrack.io/macrack/pkg/plugin/cmdutil"
	"macrack.io/macrack/pkg/plugin/console"
	"macrack.io/macrack/test/registrytest"
)

var views = []string{"Rack", "Leases", "Queue", "Compliance", "Usage", "Images"}

// A suite counts checks.
type suite struct {
	*testing.T
	b              *browser
	fleet          *fleet
	passed, failed int
}

func (s *suite) check(ok bool, format string, args ...any) {
	s.Helper()
	if ok {
		s.passed++
		return
	}
	s.failed++
	s.Errorf("FAIL "+format, args...)
}

func startConsole(t *testing.T, server *registrytest.Server, user string, groups []string, now time.Time, namespaces ...string) (url string, stop func()) {
	t.Helper()
	config := server.Config(user, groups...)
	config.Wrap(func(next http.RoundTripper) http.RoundTripper { return &reports{next, now} })
	client, err := versioned.NewForConfig(config)
	require.NoError(t, err)
	clients := &cmdutil.Clients{MacRack: client, Kube: kubefake.NewClientset(), Namespace: namespaces[len(namespaces)-1]}
	s, err := console.NewServer(clients, clock.RealClock{}, 0, namespaces...)
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	stop = func() {
		cancel()
		<-done
	}
	t.Cleanup(cancel)
	return s.URL(), stop
}

func TestConsole(t *testing.T) {
	etcd := registrytest.StartEtcd(t)
	f := &fleet{t: t, etcd: etcd.Client, now: time.Now()}
	f.seed()
	server := registrytest.StartServer(t, etcd, clock.RealClock{})
	s := &suite{T: t, b: startBrowser(t), fleet: f}

	url, stop := startConsole(t, server, "operator", []string{"system:masters"}, f.now, "", "acme")
	s.b.look(1440, "light")
	first := s.firstPicture(url)
	latency := s.eventToPicture()
	s.rackByKeyboard()
	s.eachView()
	s.hostileTexts()
	s.pictures()
	s.check(len(s.b.strangers(strings.TrimSuffix(url, "/"))) == 0, "requests left the console: %v", s.b.strangers(url))
	problems := s.b.takeProblems()
	s.check(len(problems) == 0, "errors in the browser: %v", problems)
	s.lostServer(stop)
	s.tenant(server)

	fmt.Printf("ui: views=%d checks=%d passed=%d failed=%d fleet=%d first_picture=%dms event_to_picture=%dms\n",
		len(views), s.passed+s.failed, s.passed, s.failed, fleetSize, first.Milliseconds(), latency.Milliseconds())
}

// firstPicture opens the page, and returns the time until the whole fleet is on the screen.
func (s *suite) firstPicture(url string) time.Duration {
	s.b.do(chromedp.Navigate(url))
	s.check(s.b.await("performance.getEntriesByName('first-picture').length"), "no first picture")
	took := time.Duration(eval[float64](s.b, "performance.getEntriesByName('first-picture')[0].startTime") * float64(time.Millisecond))
	s.check(eval[int](s.b, "document.querySelectorAll('.mac[aria-label]').length") == fleetSize, "the picture has not all Macs")
	s.check(took < 5*time.Second, "the first picture took %s", took)
	return took
}

// eventToPicture changes Macs, and returns the median time until the picture shows the change.
func (s *suite) eventToPicture() time.Duration {
	var took []time.Duration
	for n := range 9 {
		name := macName(4 + 9*n)
		mac := s.fleet.mac(4 + 9*n)
		mac.Status.Phase, mac.Spec.Maintenance = rackv1alpha1.MacNodeMaintenance, true
		s.b.js(`window.pictured = new Promise((done) => {
			const tile = document.querySelector('.mac[data-name="` + name + `"]');
			new MutationObserver(() => tile.getAttribute('aria-label').includes('Maintenance') && requestAnimationFrame(() => setTimeout(() => done(Date.now()))))
				.observe(tile, { attributes: true });
		})`)
		time.Sleep(100 * time.Millisecond)
		began := time.Now()
		s.fleet.putMac(mac)
		at := eval[float64](s.b, "window.pictured")
		took = append(took, time.Duration(at-float64(began.UnixMilli()))*time.Millisecond)
	}
	worst := slices.Max(took)
	s.Logf("event to picture: %v", took)
	s.check(worst < 3*time.Second, "the picture was late: %v", took)
	return median(took)
}

func (s *suite) rackByKeyboard() {
	b := s.b
	s.check(len(b.find("tablist", "Views")) == 1, "no list of views")
	s.check(len(b.find("tab", "")) == len(views), "not all views have a tab")
	s.check(b.tabTo("tab", "Rack"), "Tab does not reach the tabs")
	s.check(b.tabTo("searchbox", "Filter"), "Tab does not reach the filter")
	s.check(b.tabTo("button", macName(0)), "Tab does not reach the first Mac")
	s.check(strings.HasPrefix(b.focused().name, macName(0)+", Leased, tenant acme, lease ci-0000, 2 of 2 VM slots used: vm-0000-0 and vm-0000-1"), "the name of a Mac: %q", b.focused().name)
	b.press(kb.ArrowRight)
	s.check(strings.HasPrefix(b.focused().name, macName(1)+","), "right: %q", b.focused().name)
	b.press(kb.ArrowDown)
	s.check(strings.HasPrefix(b.focused().name, macName(3)+","), "down: %q", b.focused().name)
	b.press(kb.ArrowUp, kb.ArrowLeft)
	s.check(strings.HasPrefix(b.focused().name, macName(0)+","), "up and left: %q", b.focused().name)
	b.press(kb.End)
	s.check(strings.HasPrefix(b.focused().name, macName(999)+","), "end: %q", b.focused().name)
	s.check(eval[bool](b, "(r => r.top >= 0 && r.bottom <= innerHeight)(document.activeElement.getBoundingClientRect())"), "the focused Mac is not visible")
	s.check(eval[string](b, "getComputedStyle(document.activeElement).outlineStyle") == "solid", "the focus is not visible")
	s.check(len(b.find("button", "")) > perRack, "Macs are no buttons")
	b.press(kb.Home, kb.Enter)
	s.check(b.await(`document.querySelector('#detail h2')?.textContent === 'mac-0000'`), "Enter selects nothing")
	s.check(len(b.find("region", "Mac mac-0000")) == 1, "the selected Mac has no region")
	s.check(b.await(`document.querySelector('#detail').textContent.includes('Mac16,10')`), "no hardware")
	for _, want := range []string{"macos-26-xcode-26", "SlotsHealthy", "acme/ci-0000", "vm-0000-0", "C070000000", "rack r1", "None."} {
		s.check(eval[bool](b, fmt.Sprintf("document.querySelector('#detail').textContent.includes(%q)", want)), "the detail has no %s", want)
	}
	b.screenshot("detail-1440-light")
	b.press(kb.Escape)
	s.check(eval[bool](b, "document.querySelector('#detail').hidden"), "Escape closes nothing")
	s.check(strings.HasPrefix(b.focused().name, macName(0)+","), "the focus is lost: %q", b.focused().name)
	b.press("/")
	s.check(b.focused().role == "searchbox", "/ does not go to the filter")
	b.press("g", "l", "o", "b", "e", "x")
	s.check(b.await("document.querySelectorAll('.mac').length > 50 && document.querySelectorAll('.mac').length < 300"), "the filter %q shows %d Macs", eval[string](b, "document.querySelector('#filter').value"), eval[int](b, "document.querySelectorAll('.mac').length"))
	s.check(b.await("document.querySelector('#found').textContent.endsWith('of 1000')"), "the number of found Macs is not said")
	b.press(kb.Escape)
	s.check(b.await("document.querySelectorAll('.mac').length === 1000"), "Escape does not clear the filter")
	s.check(b.tabTo("button", "Quarantined"), "Tab does not reach the phases")
	b.press(" ")
	s.check(b.await("document.querySelectorAll('.mac').length === document.querySelectorAll('.mac[data-look=Quarantined]').length"), "a phase is no filter")
	b.press(" ")
	s.check(b.await("document.querySelectorAll('.mac').length === 1000"), "a phase stays a filter")
}

// eachView goes through the tabs with the arrow keys.
func (s *suite) eachView() {
	b := s.b
	b.js("document.querySelector('#tab-rack').focus()")
	wants := map[string][]string{
		"Leases":     {"mac-0000, lease acme/ci-0000, Bound, ", "Held"},
		"Queue":      {"acme/waiting-00", "NoMacAvailable", "Pulling image macos-15-xcode-16: 77% of 58 GiB"},
		"Compliance": {"90d", "Violated", "Rule 1: at most two VMs on a Mac", "acme/c070000042-000000000009"},
		"Usage":      {"globex", "mac-mini-pro", "Billable days", "696 of 800 leased, 87 %"},
		"Images":     {"macos-26-xcode-26", "16.4", "1000", "77% of 58 GiB", "the registry has no such manifest"},
	}
	for _, view := range views[1:] {
		b.press(kb.ArrowRight)
		s.check(b.focused() == accessible{"tab", view}, "the tab after the arrow is %v", b.focused())
		s.check(len(b.find("tabpanel", view)) == 1, "no panel %s", view)
		panel := "document.querySelector('#view-" + strings.ToLower(view) + "')"
		for _, want := range wants[view] {
			s.check(b.await(fmt.Sprintf("(%[1]s.textContent + [...%[1]s.querySelectorAll('[aria-label]')].map((e) => e.getAttribute('aria-label')).join()).includes(%[2]q)", panel, want)), "%s has no %q", view, want)
		}
	}
	b.press(kb.Home)
	s.check(b.focused() == accessible{"tab", "Rack"}, "Home: %v", b.focused())
	b.press(kb.ArrowRight)
	s.check(b.tabTo("listitem", macName(0)), "Tab does not reach the leases")
	b.press(kb.ArrowDown, kb.Enter)
	s.check(b.await(`document.querySelector('#detail h2')?.textContent === 'mac-0001'`), "Enter does not select the Mac of a lease")
	b.press(kb.Escape)
}

// hostileTexts checks that markup from the cluster is text in each view that has it.
func (s *suite) hostileTexts() {
	for _, view := range []string{"queue", "compliance"} {
		s.b.js("document.querySelector('#tab-" + view + "').click()")
		panel := "document.querySelector('#view-" + view + "')"
		s.check(s.b.await(panel+`.textContent.includes('<img src=x onerror="window.pwned=1">')`), "the hostile text is not shown in %s", view)
		s.check(eval[bool](s.b, panel+`.textContent.includes('\\u202egnp.exe') && !document.body.textContent.includes('\u202e')`), "%s turns the direction of a text", view)
	}
	mac := s.fleet.mac(999)
	mac.Spec.Location = rackv1alpha1.MacNodeLocation{Site: hostile, Rack: hostile, Shelf: hostile}
	s.fleet.putMac(mac)
	s.b.js("document.querySelector('#tab-rack').click()")
	s.check(s.b.await(`[...document.querySelectorAll('.rack h3')].some((e) => e.textContent.includes('<img src=x'))`), "the hostile rack is not shown")
	s.check(eval[int](s.b, "document.querySelectorAll('img, body script, [onerror], [onload]').length") == 0, "markup from the cluster became elements")
	s.check(eval[bool](s.b, "window.pwned === undefined"), "a script from the cluster ran")
	s.fleet.putMac(s.fleet.mac(999))
	s.check(s.b.await(`![...document.querySelectorAll('.rack h3')].some((e) => e.textContent.includes('<img'))`), "a Mac that has moved is in its old rack")
}

// pictures takes screenshots, and checks that nothing is wider than the window.
func (s *suite) pictures() {
	for _, width := range []int64{1440, 375} {
		for _, scheme := range []string{"light", "dark"} {
			s.b.look(width, scheme)
			grounds := map[string]string{"light": "rgb(243, 245, 247)", "dark": "rgb(17, 22, 27)"}
			s.check(s.b.await(fmt.Sprintf("getComputedStyle(document.body).backgroundColor === %q", grounds[scheme])), "%s has the ground %s", scheme, eval[string](s.b, "getComputedStyle(document.body).backgroundColor"))
			for _, view := range views {
				name := strings.ToLower(view)
				s.b.js("document.querySelector('#tab-" + name + "').click(); scrollTo(0, 0)")
				time.Sleep(200 * time.Millisecond)
				s.check(eval[int](s.b, "document.documentElement.scrollWidth") <= int(width), "%s is wider than %d", view, width)
				poor := eval[[]string](s.b, lowContrast)
				s.check(len(poor) == 0, "%s, %s: texts with low contrast: %v", view, scheme, poor)
				s.b.screenshot(fmt.Sprintf("%s-%d-%s", name, width, scheme))
			}
		}
	}
	s.b.look(375, "light")
	s.b.js("document.querySelector('#tab-rack').click(); document.querySelector('.mac').click()")
	s.check(s.b.await("document.querySelector('#detail').textContent.includes('Mac16,10')"), "no detail on a phone")
	s.check(eval[int](s.b, "document.documentElement.scrollWidth") <= 375, "the detail is wider than the phone")
	s.b.screenshot("detail-375-light")
	s.b.press(kb.Escape)
}

// lowContrast returns texts of the page whose contrast to their ground is less than 4.5.
const lowContrast = `(() => {
	const canvas = document.createElement('canvas').getContext('2d', { willReadFrequently: true });
	const rgba = (colour) => { canvas.clearRect(0, 0, 1, 1); canvas.fillStyle = colour; canvas.fillRect(0, 0, 1, 1); return [...canvas.getImageData(0, 0, 1, 1).data]; };
	const light = ([r, g, b]) => [r, g, b].map((v) => v / 255).map((v) => v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4).reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
	const ground = (e) => { for (; e; e = e.parentElement) { const c = rgba(getComputedStyle(e).backgroundColor); if (c[3] === 255) return c; } return [255, 255, 255]; };
	const found = new Set();
	for (const e of [...document.querySelectorAll('body *')].filter((e) => e.checkVisibility() && [...e.childNodes].some((n) => n.nodeType === 3 && n.data.trim())).slice(0, 600)) {
		const style = getComputedStyle(e), ink = e instanceof SVGElement ? style.fill : style.color;
		const [a, b] = [light(rgba(ink)), light(ground(e))].sort((x, y) => y - x);
		if ((a + 0.05) / (b + 0.05) < 4.5) found.add(e.className + ': ' + e.textContent.slice(0, 30));
	}
	return [...found];
})()`

// lostServer stops the console while the page is open.
func (s *suite) lostServer(stop func()) {
	s.b.look(1440, "light")
	stop()
	s.check(s.b.await(`document.querySelector('#banner').textContent.startsWith('Disconnected since')`), "the page does not say that the console has ended")
	s.check(len(s.b.find("alert", "")) == 1, "the banner is no alert")
	s.b.takeProblems()
}

// tenant opens the console with the rights of a tenant.
func (s *suite) tenant(server *registrytest.Server) {
	url, stop := startConsole(s.T, server, "alice", nil, s.fleet.now, "", "acme")
	defer stop()
	s.b.do(chromedp.Navigate(url))
	s.check(s.b.await("performance.getEntriesByName('first-picture').length"), "no first picture")
	s.check(s.b.await(`document.querySelector('#view-rack .notice')?.textContent.includes('other namespaces are not shown')`), "missing rights are not said: %s", eval[string](s.b, "document.querySelector('#view-rack').textContent.slice(0, 300)"))
	s.b.js("document.querySelector('#tab-leases').click()")
	s.check(s.b.await("document.querySelectorAll('.row').length > 20"), "the tenant does not see its leases")
	s.check(eval[bool](s.b, "[...document.querySelectorAll('.row')].every((r) => r.getAttribute('aria-label').includes('lease acme/'))"), "the tenant sees leases of others")
	s.b.screenshot("tenant-1440-light")
}

func median(all []time.Duration) time.Duration {
	sorted := slices.Sorted(slices.Values(all))
	return sorted[len(sorted)/2]
}
