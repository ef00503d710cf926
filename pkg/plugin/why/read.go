package why

import (
	"context"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"

	rackv1alpha1 "macrack.io/macrack/pkg/apis/rack/v1alpha1"
	"macrack.io/macrack/pkg/plugin/cmdutil"
	"macrack.io/macrack/pkg/plugin/fleet"
)

// last is the number of Events and records that are shown.
const last = 5

// readEvents adds the last Events of an object.
func (e *Explanation) readEvents(ctx context.Context, c *cmdutil.Clients, uid types.UID) error {
	namespace := e.Object.Namespace
	if namespace == "" {
		namespace = metav1.NamespaceDefault // of the Events of objects without a namespace
	}
	resource := cmdutil.Resource{Name: "Events", Resource: "events", Namespace: namespace, Namespaced: true}
	selector := fields.Set{"involvedObject.name": e.Object.Name, "involvedObject.uid": string(uid)}
	list, err := c.Kube.CoreV1().Events(namespace).List(ctx, metav1.ListOptions{FieldSelector: selector.String()})
	if apierrors.IsForbidden(err) {
		e.Notices = append(e.Notices, resource.NotShown("list"))
		return nil
	}
	if err != nil {
		return resource.Explain("list", err)
	}
	events := slices.DeleteFunc(list.Items, func(event corev1.Event) bool { return event.InvolvedObject.UID != uid })
	slices.SortStableFunc(events, func(a, b corev1.Event) int { return eventTime(&a).Compare(eventTime(&b)) })
	for _, event := range events[max(0, len(events)-last):] {
		e.Events = append(e.Events, Event{
			Time: cmdutil.Time(eventTime(&event)), Type: event.Type, Reason: event.Reason, Message: event.Message, Count: max(event.Count, 1),
		})
	}
	return nil
}

func eventTime(event *corev1.Event) time.Time {
	latest := event.LastTimestamp.Time
	for _, t := range []time.Time{event.EventTime.Time, event.CreationTimestamp.Time} {
		if latest.IsZero() {
			latest = t
		}
	}
	return latest
}

// readRecords adds the last records that match, of a namespace or of all namespaces. A serial
// number restricts the search.
func (e *Explanation) readRecords(ctx context.Context, c *cmdutil.Clients, namespace, serial string, matches func(*rackv1alpha1.AuditRecord) bool) error {
	resource := fleet.Records.In(namespace)
	opts := metav1.ListOptions{}
	if serial != "" {
		opts.FieldSelector = fields.Set{"chassis.serialNumber": serial}.String()
	}
	list, err := c.MacRack.RackV1alpha1().AuditRecords(namespace).List(ctx, opts)
	if apierrors.IsForbidden(err) {
		e.Notices = append(e.Notices, resource.NotShown("list"))
		return nil
	}
	if err != nil {
		return resource.Explain("list", err)
	}
	records := slices.DeleteFunc(list.Items, func(r rackv1alpha1.AuditRecord) bool { return !matches(&r) })
	slices.SortStableFunc(records, func(a, b rackv1alpha1.AuditRecord) int { return a.Time.Compare(b.Time.Time) })
	for _, r := range records[max(0, len(records)-last):] {
		e.Records = append(e.Records, Record{
			Time: cmdutil.Time(r.Time.Time), Type: string(r.Type), Actor: r.Actor.Username, Reason: r.Details.Reason, Message: r.Details.Message,
		})
	}
	return nil
}
