package io.github.rlockredis.spring.boot;

import io.github.rlockredis.Hold;
import io.github.rlockredis.RLock;
import io.github.rlockredis.RLockClient;
import java.lang.reflect.Method;
import java.time.Duration;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.Future;
import java.util.function.Consumer;
import org.aopalliance.intercept.MethodInterceptor;
import org.aopalliance.intercept.MethodInvocation;
import org.reactivestreams.Publisher;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;
import org.springframework.aop.support.AopUtils;
import org.springframework.beans.factory.BeanFactory;
import org.springframework.beans.factory.ObjectProvider;
import org.springframework.beans.factory.config.ConfigurableBeanFactory;
import org.springframework.boot.convert.DurationStyle;
import org.springframework.context.expression.BeanFactoryResolver;
import org.springframework.context.expression.MethodBasedEvaluationContext;
import org.springframework.core.DefaultParameterNameDiscoverer;
import org.springframework.core.annotation.AnnotatedElementUtils;
import org.springframework.expression.Expression;
import org.springframework.expression.spel.standard.SpelExpressionParser;
import org.springframework.util.ClassUtils;

/** Holds the lock of a {@link DistributedLock} during the call. */
final class DistributedLockInterceptor implements MethodInterceptor {
    private static final Logger log = LoggerFactory.getLogger(DistributedLockInterceptor.class);

    private final ObjectProvider<RLockClient> client;
    private final ObjectProvider<RLockProperties> properties;
    private final ObjectProvider<LockMetrics> metrics;
    private final DefaultParameterNameDiscoverer names = new DefaultParameterNameDiscoverer();
    private final Map<String, Expression> expressions = new ConcurrentHashMap<>();
    private ConfigurableBeanFactory beans;

    DistributedLockInterceptor(
            ObjectProvider<RLockClient> client,
            ObjectProvider<RLockProperties> properties,
            ObjectProvider<LockMetrics> metrics) {
        this.client = client;
        this.properties = properties;
        this.metrics = metrics;
    }

    void setBeanFactory(BeanFactory factory) {
        beans = (ConfigurableBeanFactory) factory;
    }

    @Override
    public Object invoke(MethodInvocation call) throws Throwable {
        Object target = call.getThis();
        Method method = AopUtils.getMostSpecificMethod(call.getMethod(), AopUtils.getTargetClass(target));
        var annotation = AnnotatedElementUtils.findMergedAnnotation(method, DistributedLock.class);
        if (annotation == null) return call.proceed();
        Class<?> result = method.getReturnType();
        if (Future.class.isAssignableFrom(result) || Publisher.class.isAssignableFrom(result)) {
            throw new IllegalStateException("@DistributedLock ends before the work of " + method);
        }
        String name = ClassUtils.getShortName(method.getDeclaringClass()) + "." + method.getName();
        Hold hold = acquire(lock(annotation, target, method, call.getArguments()), annotation, name);
        long start = System.nanoTime();
        try (hold) {
            try {
                return call.proceed();
            } finally {
                measure(it -> it.held(name, System.nanoTime() - start));
            }
        }
    }

    private RLock lock(DistributedLock annotation, Object target, Method method, Object[] arguments) {
        var context = new MethodBasedEvaluationContext(target, method, arguments, names);
        context.setBeanResolver(new BeanFactoryResolver(beans));
        Object key = expressions
                .computeIfAbsent(annotation.key(), new SpelExpressionParser()::parseExpression)
                .getValue(context);
        if (key == null) throw new IllegalArgumentException("the key '" + annotation.key() + "' is null");
        var locks = client.getObject();
        var lock = annotation.fair() ? locks.fairLock(key.toString()) : locks.lock(key.toString());
        Duration lease = duration(annotation.lease());
        return lease == null ? lock : lock.with(properties.getObject().options().withLease(lease));
    }

    private Hold acquire(RLock lock, DistributedLock annotation, String name) {
        long start = System.nanoTime();
        Duration timeout = duration(annotation.timeout());
        boolean acquired = false;
        try {
            Hold hold = timeout == null ? lock.acquire() : lock.acquire(timeout);
            acquired = true;
            return hold;
        } catch (InterruptedException interrupted) {
            Thread.currentThread().interrupt();
            throw new IllegalStateException("interrupted while " + name + " waited for its lock", interrupted);
        } finally {
            boolean result = acquired;
            measure(it -> it.waited(name, result, System.nanoTime() - start));
        }
    }

    /** Metrics may fail, for example if the context is closed meanwhile. That must leave no hold and hide no result. */
    private void measure(Consumer<LockMetrics> measurement) {
        try {
            metrics.ifAvailable(measurement);
        } catch (RuntimeException failed) {
            log.debug("not measured", failed);
        }
    }

    private Duration duration(String text) {
        String resolved = beans.resolveEmbeddedValue(text);
        return resolved == null || resolved.isBlank() ? null : DurationStyle.detectAndParse(resolved);
    }
}
